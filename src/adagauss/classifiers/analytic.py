"""ACIL's classifier: ridge regression on a fixed random expansion of the features, solved from running sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from adagauss.classifiers.base import Classifier, Scorer
from adagauss.gaussians import ClassGaussians
from adagauss.linalg import solve_ridge
from adagauss.needs import Need
from adagauss.state import Learned, recalled
from adagauss.task import CurrentTask

ROWS = 4096
"""Number of images expanded at once during learning: it bounds the memory of the expansion."""


def recursive_start(size: int, gamma: float) -> tuple[Tensor, Tensor]:
    """R = I/γ and a W without columns: the start of the recursion."""
    return torch.eye(size, dtype=torch.float64) / gamma, torch.zeros(size, 0, dtype=torch.float64)


def recursive_update(inverse: Tensor, weight: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the papers' recursion; new classes have zero columns in W before it:

    R ← R − RXᵀ(I + XRXᵀ)⁻¹XR and W ← W + RXᵀ(Y − XW). It keeps R = (ΣXᵀX + γI)⁻¹ and W = R·ΣXᵀY, which `RidgeStream`
    computes from the sums, without the accumulated rounding errors of a recursion.
    """
    new = targets.shape[1] - weight.shape[1]
    weight = torch.cat([weight, weight.new_zeros(len(weight), new)], 1)
    projected = inverse @ inputs.T
    inner = torch.eye(len(inputs), dtype=inputs.dtype) + inputs @ projected
    inverse = inverse - projected @ torch.linalg.solve(inner, projected.T)
    return inverse, weight + inverse @ inputs.T @ (targets - inputs @ weight)


class RidgeStream(Learned):
    """The sums A = ΣXᵀX and C = ΣXᵀY of all tasks, and W = (A + γI)⁻¹C: the same as with all data at once.

    Each new class adds a column to C in its task; images of other tasks have zeros there, so no column ever changes.
    """

    def __init__(self, gram: Tensor, cross: Tensor, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("gram", gram)
        self.register_buffer("cross", cross)
        self.register_buffer("weight", weight)
        self.gram: Tensor
        self.cross: Tensor
        self.weight: Tensor

    @classmethod
    def empty(cls, size: int, device: torch.device | str = "cpu") -> RidgeStream:
        """Empty sums."""
        nothing = torch.zeros(size, 0, dtype=torch.float64, device=device)
        return cls(torch.zeros(size, size, dtype=torch.float64, device=device), nothing, nothing)

    def after(self, rows: Iterable[tuple[Tensor, Tensor]], classes: int, gamma: float) -> RidgeStream:
        """The sums after one more task, from blocks of inputs and of targets over its own classes, with W solved."""
        gram = self.gram
        cross = self.cross.new_zeros(len(self.cross), classes)
        for inputs, targets in rows:
            # The first block makes the new matrix, the others add to it: the old sums stay as they are.
            gram = torch.addmm(gram, inputs.T, inputs) if gram is self.gram else gram.addmm_(inputs.T, inputs)
            cross.addmm_(inputs.T, targets)
        cross = torch.cat([self.cross, cross], 1)
        return RidgeStream(gram, cross, solve_ridge(gram, cross, gamma))


class AnalyticScorer(Scorer):
    """ReLU(f·B)·W, with the sums that W comes from."""

    def __init__(self, expansion: Tensor, main: RidgeStream) -> None:
        super().__init__()
        self.register_buffer("expansion", expansion)
        self.expansion: Tensor
        self.main = main

    def forward(self, features: Tensor) -> Tensor:
        return (features.to(self.expansion) @ self.expansion).relu() @ self.main.weight

    def blocks(self, features: Tensor, targets: Tensor, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Z = f·B before any activation, and one-hot labels, in blocks of rows."""
        one_hot = F.one_hot(targets, classes).double()
        for some, labels in zip(torch.split(features, ROWS), torch.split(one_hot, ROWS), strict=True):
            yield some.to(self.expansion) @ self.expansion, labels


def random_expansion(features: int, size: int, generator: torch.Generator, device: torch.device | str) -> Tensor:
    """B, uniform in ±1/√S."""
    uniform = 2 * torch.rand(features, size, generator=generator, dtype=torch.float64) - 1
    scaled: Tensor = uniform / features**0.5
    return scaled.to(device)


class Analytic(Classifier):
    """argmax_c (XW)_c with X = ReLU(f·B), B random and fixed, W the ridge regression of all tasks' one-hot labels."""

    kind = "analytic"
    expansion_size: PositiveInt = 8192
    """Columns of B; the sums have this number squared of float64 values (512 MiB for 8192)."""
    gamma: PositiveFloat = 0.1

    @property
    def requires(self) -> frozenset[Need]:
        return frozenset({Need.STILL_FEATURES})

    def empty_state(self) -> AnalyticScorer:
        return AnalyticScorer(torch.zeros(0, 0, dtype=torch.float64), RidgeStream.empty(0))

    def start(self, features: int, generator: torch.Generator, device: torch.device | str = "cpu") -> AnalyticScorer:
        """A random expansion with empty sums."""
        expansion = random_expansion(features, self.expansion_size, generator, device)
        return AnalyticScorer(expansion, RidgeStream.empty(self.expansion_size, device))

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: Learned | None) -> AnalyticScorer:
        known = recalled(before, AnalyticScorer)
        if known is None:
            generator = now.runtime.generator("analytic expansion")
            known = self.start(now.network.extractor.size, generator, now.runtime.device)
        return self.after(known, now.features("test"), now.targets, len(now.classes))

    def after(self, known: AnalyticScorer, features: Tensor, targets: Tensor, classes: int) -> AnalyticScorer:
        """The scorer after one more task with ``classes`` new classes; ``targets`` count from 0 within the task."""
        rows = ((z.relu(), labels) for z, labels in known.blocks(features, targets, classes))
        return AnalyticScorer(known.expansion, known.main.after(rows, classes, self.gamma))
