"""ACIL (NeurIPS 2022): a frozen extractor and a ridge regression over all data seen, solved from running sums.

    task 1: train F with L_CE, then freeze it                       representation
    every task, with X = ReLU(F(x)·B), B random and fixed:
        A ← A + XᵀX,  C ← [C, XᵀY]                                  classifier (running sums)
        W = (A + γI)⁻¹C, the ridge regression of all images seen    classifier
    predict argmax_c (XW)_c

The paper updates (A + γI)⁻¹ and W recursively, which gives the same W. Expansion 8192 is for CIFAR, 16384 for ImageNet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from adagauss.analytic.ridge import RidgeStream
from adagauss.backbones import BackboneConfig
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import ClassMap, Scorer, State, as_state
from adagauss.core.task import ClassEdit, CurrentTask, FitContext
from adagauss.core.train import Recipe
from adagauss.errors import DataError
from adagauss.methods.base import Method, register_method
from adagauss.parts.classifiers import Classifier
from adagauss.parts.drift import NoDrift
from adagauss.parts.memory import NoMemory
from adagauss.parts.representation import Representation
from adagauss.parts.terms import CrossEntropy

ROWS = 4096
"""Images expanded at once, which bounds memory."""


class AnalyticScorer(Scorer):
    """ReLU(f·B)·W, with the sums that W comes from."""

    dims: ClassVar[Mapping[str, str]] = {"expansion": "se"}
    contents: ClassVar[str] = "a random matrix"

    def check(self) -> None:
        """Raise a `DataError` if the sums are not over what the expansion gives."""
        super().check()
        for stream in (one for one in self.children() if isinstance(one, RidgeStream)):
            self.require(self.expansion.shape[1] == len(stream.gram), "its sums are not over its expansion")

    def __init__(self, expansion: Tensor, main: RidgeStream) -> None:
        super().__init__()
        self.register_buffer("expansion", expansion)
        self.expansion: Tensor
        self.main = main

    def forward(self, features: Tensor) -> Tensor:
        return (features.to(self.expansion) @ self.expansion).relu() @ self.main.weight

    @property
    def class_sums(self) -> Tensor:
        return self.main.cross

    def blocks(self, features: Tensor, targets: Tensor, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Z = f·B before any activation, and one-hot labels over all classes, in blocks of rows."""
        one_hot = F.one_hot(targets, classes).double()
        for some, labels in zip(torch.split(features, ROWS), torch.split(one_hot, ROWS), strict=True):
            yield some.to(self.expansion) @ self.expansion, labels

    def remap_classes(self, groups: ClassMap) -> Self:
        return type(self)(self.expansion, self.main.remap_classes(groups))


def random_expansion(features: int, size: int, generator: torch.Generator, device: torch.device | str) -> Tensor:
    """B, uniform in ±1/√S."""
    uniform = 2 * torch.rand(features, size, generator=generator, dtype=torch.float64) - 1
    scaled: Tensor = uniform / features**0.5
    return scaled.to(device)


class Analytic(Classifier):
    """argmax_c (XW)_c with X = ReLU(f·B), B random and fixed, W the ridge regression of all tasks' one-hot labels."""

    kind = "analytic"
    cheap = False
    expansion_size: PositiveInt = 8192
    """Columns of B; the sums have this number squared of float64 values (512 MiB for 8192)."""
    gamma: PositiveFloat = 0.1

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.FROZEN_FEATURES})

    def empty_state(self) -> AnalyticScorer:
        return AnalyticScorer(torch.zeros(0, 0, dtype=torch.float64), RidgeStream.empty(0))

    def start(self, features: int, generator: torch.Generator, device: torch.device | str = "cpu") -> AnalyticScorer:
        """A random expansion with empty sums."""
        expansion = random_expansion(features, self.expansion_size, generator, device)
        return AnalyticScorer(expansion, RidgeStream.empty(self.expansion_size, device))

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> AnalyticScorer:
        known = as_state(before, AnalyticScorer)
        if known is None:
            generator = now.runtime.generator("analytic expansion")
            known = self.start(now.network.extractor.size, generator, now.runtime.device)
        return self.after(known, now.features("test"), now.targets, now.columns)

    def after(self, known: AnalyticScorer, features: Tensor, targets: Tensor, columns: Sequence[int]) -> AnalyticScorer:
        """The scorer after one more task; ``targets`` count from 0 within it, ``columns`` are those of its classes."""
        classes = max(known.main.cross.shape[1], max(columns) + 1)
        labels = torch.tensor(columns, device=targets.device)[targets]
        return AnalyticScorer(known.expansion, self._changed(known, features, labels, classes, 1))

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> Scorer:
        known = as_state(before, AnalyticScorer)
        assert known is not None
        if now.removed is not None:
            known = self.without(known, now.removed.features("test"), now.removed.column_targets)
        return known.remap_classes(now.groups)

    def without(self, known: AnalyticScorer, features: Tensor, targets: Tensor) -> AnalyticScorer:
        """The scorer of one who never saw these images; ``targets`` are their score columns."""
        return AnalyticScorer(known.expansion, self._changed(known, features, targets, known.main.cross.shape[1], -1))

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> AnalyticScorer:
        mine, theirs = as_state(one, AnalyticScorer), as_state(other, AnalyticScorer)
        assert mine is not None
        assert theirs is not None
        if not torch.equal(mine.expansion, theirs.expansion):
            raise DataError("these learners have different random expansions: make both with the same seed")
        return AnalyticScorer(mine.expansion, mine.main.plus(theirs.main, columns, self.gamma))

    def _changed(
        self, known: AnalyticScorer, features: Tensor, targets: Tensor, classes: int, sign: int
    ) -> RidgeStream:
        rows = ((z.relu(), labels) for z, labels in known.blocks(features, targets, classes))
        return known.main.after(rows, classes, self.gamma, sign)


@register_method(
    "acil",
    title="ACIL",
    family="frozen extractor",
    stores="autocorrelation of all expanded features, and one vector of that size per class",
    paper="Zhuang et al., NeurIPS 2022, arXiv 2205.14922",
)
def acil() -> Method:
    """The method of the paper."""
    return Method(
        backbone=BackboneConfig(features=None),
        representation=base_training(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=Analytic(expansion_size=8192, gamma=0.1),
    )


def base_training() -> Representation:
    """The first task, as for CIFAR-100 without strong augmentation; nothing is trained after it."""
    return Representation(
        first=Recipe(epochs=160, batch_size=128, milestones=(0.75, 0.875)),
        later=None,
        head_bias=False,
        terms={"cross_entropy": CrossEntropy()},
    )
