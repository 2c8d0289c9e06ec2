"""ACIL's classifier: ridge regression on a fixed random expansion of the features, solved from running sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt, PrivateAttr
from torch import Tensor

from adagauss.classifiers.base import Classifier
from adagauss.config import State
from adagauss.gaussians import ClassGaussians
from adagauss.linalg import solve_ridge
from adagauss.task import CurrentTask

ROWS = 4096
"""Images expanded at once: bounds the memory that an expansion takes."""


def row_blocks(total: int) -> list[slice]:
    """Slices that go over all rows, `ROWS` at a time; one empty slice if there are none."""
    return [slice(start, start + ROWS) for start in range(0, max(1, total), ROWS)]


def recursive_start(size: int, gamma: float) -> tuple[Tensor, Tensor]:
    """R = I/γ and a W without columns: where the recursion begins."""
    return torch.eye(size, dtype=torch.float64) / gamma, torch.zeros(size, 0, dtype=torch.float64)


def recursive_update(inverse: Tensor, weight: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the recursion that the papers give, new classes having zero columns in W before it:

    R ← R − RXᵀ(I + XRXᵀ)⁻¹XR and W ← W + RXᵀ(Y − XW). It keeps R = (ΣXᵀX + γI)⁻¹ and W = R·ΣXᵀY, which `RidgeStream`
    has from the sums themselves, without the rounding errors that a recursion collects.
    """
    new = targets.shape[1] - weight.shape[1]
    weight = torch.cat([weight, weight.new_zeros(len(weight), new)], 1)
    projected = inverse @ inputs.T
    inner = torch.eye(len(inputs), dtype=inputs.dtype) + inputs @ projected
    inverse = inverse - projected @ torch.linalg.solve(inner, projected.T)
    return inverse, weight + inverse @ inputs.T @ (targets - inputs @ weight)


class RidgeStream:
    """The sums A = ΣXᵀX and C = ΣXᵀY of all tasks, and W = (A + γI)⁻¹C: as if all data had been there at once.

    A class adds a column to C when its task comes; images of other tasks have zeros there, so no column ever changes.
    """

    def __init__(self, gram: Tensor, cross: Tensor, weight: Tensor) -> None:
        self.gram = gram
        self.cross = cross
        self.weight = weight

    @classmethod
    def empty(cls, size: int, device: torch.device) -> RidgeStream:
        """Sums over nothing."""
        nothing = torch.zeros(size, 0, dtype=torch.float64, device=device)
        return cls(torch.zeros(size, size, dtype=torch.float64, device=device), nothing, nothing)

    def learn(self, rows: Iterable[tuple[Tensor, Tensor]], classes: int, gamma: float) -> None:
        """Take in a task from blocks of inputs and targets over its own classes, then solve."""
        cross = self.cross.new_zeros(len(self.cross), classes)
        for inputs, targets in rows:
            self.gram.addmm_(inputs.T, inputs)
            cross.addmm_(inputs.T, targets)
        self.cross = torch.cat([self.cross, cross], 1)
        self.weight = solve_ridge(self.gram, self.cross, gamma)

    def state_dict(self) -> State:
        """Its tensors."""
        return {"gram": self.gram, "cross": self.cross, "weight": self.weight}


class Analytic(Classifier):
    """argmax_c (XW)_c with X = ReLU(f·B), B random and fixed, W the ridge regression of all tasks' one-hot labels."""

    kind = "analytic"
    buffer: PositiveInt = 8192
    """Size of the expansion; its sums take buffer² numbers in float64 (512 MiB for 8192)."""
    gamma: PositiveFloat = 0.1
    _expansion: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(0, 0))
    _streams: dict[str, RidgeStream] = PrivateAttr(default_factory=dict)

    def fit(self, memory: ClassGaussians, now: CurrentTask) -> None:
        if not self._streams:
            self.start(now.network.extractor.size, now.runtime.generator("analytic expansion"), now.runtime.device)
        self.learn(now.features("test"), now.targets, len(now.classes))

    def start(self, features: int, generator: torch.Generator, device: torch.device) -> None:
        """Draw B, uniform in ±1/√S, and begin all sums at zero."""
        uniform = 2 * torch.rand(features, self.buffer, generator=generator, dtype=torch.float64) - 1
        self._expansion = (uniform / features**0.5).to(device)
        self._streams = {name: RidgeStream.empty(self.buffer, device) for name in self.stream_names()}

    def stream_names(self) -> tuple[str, ...]:
        """The regressions this classifier is made of."""
        return ("main",)

    def learn(self, features: Tensor, targets: Tensor, classes: int) -> None:
        """Take in a task of ``classes`` new classes; ``targets`` count from 0 among them."""
        rows = ((z.relu(), labels) for z, labels in self.blocks(features, targets, classes))
        self._streams["main"].learn(rows, classes, self.gamma)

    def blocks(self, features: Tensor, targets: Tensor, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Z = f·B before any activation, and one-hot labels, some rows at a time."""
        one_hot = F.one_hot(targets, classes).double()
        for some in row_blocks(len(features)):
            yield features[some].double() @ self._expansion, one_hot[some]

    def scores(self, features: Tensor) -> Tensor:
        points = features.to(self._expansion.device)
        blocks = row_blocks(len(points))
        return torch.cat([self.outputs(points[some].double() @ self._expansion) for some in blocks])

    def outputs(self, expanded: Tensor) -> Tensor:
        """Scores of rows Z."""
        return expanded.relu() @ self._streams["main"].weight

    def state_dict(self) -> State:
        if not self._streams:
            return {}
        states = {name: stream.state_dict() for name, stream in self._streams.items()}
        sums = {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}
        return {"expansion": self._expansion, **sums}

    def load_state_dict(self, state: State) -> None:
        if state:
            self._expansion = state["expansion"]
            self._streams = {
                name: RidgeStream(*(state[f"{name}.{key}"] for key in ("gram", "cross", "weight")))
                for name in self.stream_names()
            }
