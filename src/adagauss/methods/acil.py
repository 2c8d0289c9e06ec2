"""ACIL (NeurIPS 2022) and DS-AL (AAAI 2024): a frozen extractor and ridge regression over all data, from running sums.

ACIL:
    task 1: train F with L_CE, then freeze it                       representation
    every task, with X = ReLU(F(x)·B), B random and fixed:
        A ← A + XᵀX,  C ← [C, XᵀY]                                  classifier (running sums)
        W = (A + γI)⁻¹C, the ridge regression of all images seen    classifier
    predict argmax_c (XW)_c

The paper updates (A + γI)⁻¹ and W recursively, which gives the same W. Expansion 8192 is for CIFAR, 16384 for ImageNet.

DS-AL adds a second stream that learns the residual of the first:
    every task, with Z = F(x)·B, B random and fixed:
        main: W_m = ridge regression of all labels seen, on ReLU(Z)             classifier
        residual Y − ReLU(Z)·W_m of this task, columns of old classes set to 0  classifier
        compensation: W_c = ridge regression of all residuals, on tanh(Z)       classifier
    predict argmax of ReLU(Z)·W_m + 𝒞·tanh(Z)·W_c

𝒞 = 0.6 is for CIFAR-100; for ImageNet-1k it is 1.5, with an expansion of 16384.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from adagauss.backbones import BackboneConfig
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import solve_ridge, summed_columns
from adagauss.core.state import ClassMap, Scorer, State, as_state
from adagauss.core.task import ClassEdit, CurrentTask
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.errors import UnsupportedError
from adagauss.methods.base import Method, register_method
from adagauss.parts.classifiers import Classifier
from adagauss.parts.representation import Representation
from adagauss.parts.terms import CrossEntropy

ROWS = 4096
"""Images expanded at once, which bounds memory."""
STREAM_ROUNDING = 1e-6
"""Relative tolerance of inequalities between float64 sums of products."""


class RidgeStream(State):
    """The sums A = ΣXᵀX and C = ΣXᵀY of all tasks, and W = (A + γI)⁻¹C: the same as with all data at once.

    The papers update (A + γI)⁻¹ and W by a recursion; the sums give the same without its rounding errors, which add up.

    Each class has a column in C, in which images of other classes have zeros: more images of a class add to its own.
    """

    dims: ClassVar[Mapping[str, str]] = {"gram": "ee", "cross": "ec", "weight": "ec"}

    def check(self) -> None:
        """Raise a `DataError` if these cannot be sums over images."""
        super().check()
        norms = self.gram.diagonal()
        if not len(norms):
            return
        self.require(norms >= -STREAM_ROUNDING * norms.max(), "a sum of squares is negative")
        limits = (norms.clamp_min(0) * (1 + STREAM_ROUNDING)).sqrt() + norms.max().sqrt() * STREAM_ROUNDING
        self.require(self.gram.abs() <= torch.outer(limits, limits), "its matrix is not a sum of products")

    @classmethod
    def empty(cls, expansion: Tensor) -> RidgeStream:
        """Empty sums of as many inputs as the expansion has columns."""
        size = expansion.shape[1]
        nothing = expansion.new_zeros(size, 0)
        return cls(gram=expansion.new_zeros(size, size), cross=nothing, weight=nothing)

    def after(self, rows: Iterable[tuple[Tensor, Tensor]], classes: int, gamma: float) -> RidgeStream:
        """The sums after one more task, from blocks of inputs and of targets over all ``classes``, with W solved."""
        gram = self.gram.clone()
        cross = F.pad(self.cross, (0, classes - self.cross.shape[1])).clone()
        for inputs, targets in rows:
            gram.addmm_(inputs.T, inputs)
            cross.addmm_(inputs.T, targets)
        return RidgeStream(gram=gram, cross=cross, weight=solve_ridge(gram, cross, gamma))

    def remap_classes(self, groups: ClassMap) -> Self:
        """Sum the columns of merged classes: W is linear in C."""
        cross, weight = (summed_columns(matrix, groups) for matrix in (self.cross, self.weight))
        return type(self)(gram=self.gram, cross=cross, weight=weight)


class AnalyticScorer(Scorer):
    """ReLU(Z)·W_main + 𝒞·tanh(Z)·W_comp with Z = f·B, and the sums that W comes from; ACIL has one stream."""

    dims: ClassVar[Mapping[str, str]] = {"expansion": "se"}

    def __init__(
        self,
        expansion: Tensor,
        amount: float = 0.0,
        main: RidgeStream | None = None,
        compensation: RidgeStream | None = None,
    ) -> None:
        """``amount`` is 𝒞; without ``main`` the sums are empty."""
        super().__init__(expansion=expansion)
        self.main = main or RidgeStream.empty(expansion)
        self.compensation = (compensation or RidgeStream.empty(expansion)) if amount else None
        self.amount = amount

    def check(self) -> None:
        """Raise a `DataError` if the sums have another size than the expansion."""
        super().check()
        for stream in (one for one in self.children() if isinstance(one, RidgeStream)):
            self.require(self.expansion.shape[1] == len(stream.gram), "its sums do not fit its expansion")

    def forward(self, features: Tensor) -> Tensor:
        z = features.to(self.expansion) @ self.expansion
        scores = z.relu() @ self.main.weight
        return scores if self.compensation is None else scores + self.amount * (z.tanh() @ self.compensation.weight)

    @property
    def class_sums(self) -> Tensor:
        return self.main.cross

    def blocks(self, features: Tensor, columns: Tensor, classes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Z = f·B before any activation, and one-hot labels over all classes, in blocks of rows."""
        one_hot = F.one_hot(columns, classes).double()
        for some, labels in zip(torch.split(features, ROWS), torch.split(one_hot, ROWS), strict=True):
            yield some.to(self.expansion) @ self.expansion, labels

    def remap_classes(self, groups: ClassMap) -> Self:
        second = None if self.compensation is None else self.compensation.remap_classes(groups)
        return type(self)(self.expansion, self.amount, self.main.remap_classes(groups), second)


class Analytic(Classifier):
    """argmax_c (XW)_c with X = ReLU(f·B), B random and fixed, W the ridge regression of all tasks' one-hot labels.

    With ``compensation`` (DS-AL) a second stream learns the residual Y − ReLU(Z)·W_main of each task, with the main
    weights after that task, only in the columns of the task's own classes. It is computed in a second pass over the
    task, so it depends neither on the order of the images nor on the batches.
    """

    kind = "analytic"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.FROZEN_FEATURES})
    cheap = False
    expansion_size: PositiveInt = 8192
    """Columns of B; the sums have the square of this number of float64 values (512 MiB for 8192)."""
    gamma: PositiveFloat = 0.1
    compensation: NonNegativeFloat = 0.0
    """𝒞; in 0..2, to be chosen on held-out training images of the first task. 0: no second stream."""
    gamma_compensation: PositiveFloat = 0.1

    def empty_state(self) -> AnalyticScorer:
        return AnalyticScorer(torch.zeros(0, 0, dtype=torch.float64), self.compensation)

    def start(self, features: int, generator: torch.Generator, device: torch.device | str = "cpu") -> AnalyticScorer:
        """B, uniform in ±1/√S, with empty sums."""
        uniform = 2 * torch.rand(features, self.expansion_size, generator=generator, dtype=torch.float64) - 1
        return AnalyticScorer((uniform / features**0.5).to(device), self.compensation)

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> AnalyticScorer:
        known = as_state(before, AnalyticScorer)
        if known is None:
            generator = now.runtime.generator("analytic expansion")
            known = self.start(now.network.extractor.size, generator, now.runtime.device)
        return self.after(known, now.features("test"), now.column_targets)

    def after(self, known: AnalyticScorer, features: Tensor, columns: Tensor) -> AnalyticScorer:
        """Add images, given by their features and score columns."""
        classes = max(known.main.cross.shape[1], int(columns.max()) + 1)
        rows = ((z.relu(), labels) for z, labels in known.blocks(features, columns, classes))
        main = known.main.after(rows, classes, self.gamma)
        if known.compensation is None:
            return AnalyticScorer(known.expansion, main=main)
        own = torch.unique(columns)

        def residuals() -> Iterator[tuple[Tensor, Tensor]]:
            for z, one_hot in known.blocks(features, columns, classes):
                residual = torch.zeros_like(one_hot)
                residual[:, own] = one_hot[:, own] - z.relu() @ main.weight[:, own]
                yield z.tanh(), residual

        second = known.compensation.after(residuals(), classes, self.gamma_compensation)
        return AnalyticScorer(known.expansion, self.compensation, main, second)

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> Scorer:
        if now.removed is not None:
            raise UnsupportedError(
                "images cannot be removed from the sums of ACIL and DS-AL; forget the class without its images, or use "
                "the method analytic, which removes them exactly"
            )
        return before.remap_classes(now.groups)


@register_method(
    "acil",
    title="ACIL",
    family="frozen extractor",
    stores="autocorrelation of all expanded features, and one vector of that size per class",
    paper="Zhuang et al., NeurIPS 2022, arXiv 2205.14922",
    recipe="PyCIL",
)
def acil() -> Method:
    """The method of the paper."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(brightness=63 / 255),
        representation=Representation(  # as for CIFAR-100 without strong augmentation
            first=Recipe(epochs=160, batch_size=128, milestones=(0.75, 0.875), drop_last=False),
            later=None,
            head_bias=False,
            terms={"cross_entropy": CrossEntropy()},
        ),
        classifier=Analytic(expansion_size=8192, gamma=0.1),
    )


@register_method(
    "dsal",
    title="DS-AL",
    family="frozen extractor",
    stores="two autocorrelations of all expanded features, and two vectors of that size per class",
    paper="Zhuang et al., AAAI 2024, arXiv 2403.17503",
    recipe="PyCIL",
)
def dsal() -> Method:
    """ACIL with a second stream."""
    return acil().with_changes(
        classifier=Analytic(expansion_size=8192, gamma=0.1, gamma_compensation=0.1, compensation=0.6)
    )
