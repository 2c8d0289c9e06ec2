"""DS-AL (AAAI 2024): ACIL with a second stream that learns what the first one cannot fit.

    task 1: train F with L_CE, then freeze it                                   representation
    every task, with Z = F(x)·B, B random and fixed:
        main: W_m = ridge regression of all labels seen, on ReLU(Z)             classifier
        residual Y − ReLU(Z)·W_m of this task, columns of old classes set to 0  classifier
        compensation: W_c = ridge regression of all residuals, on tanh(Z)       classifier
    predict argmax of ReLU(Z)·W_m + 𝒞·tanh(Z)·W_c

𝒞 = 0.6 is for CIFAR-100; for ImageNet-1k it is 1.5, with an expansion of 16384.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.analytic import Analytic, AnalyticScorer, RidgeStream, random_expansion
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import Groups, Scorer
from adagauss.core.task import FitContext
from adagauss.errors import UnsupportedError
from adagauss.methods.acil import base_training
from adagauss.methods.base import Method, register_method
from adagauss.parts.drift import NoDrift
from adagauss.parts.memory import NoMemory


class DualStreamScorer(AnalyticScorer):
    """ReLU(Z)·W_main + 𝒞·tanh(Z)·W_comp with Z = f·B."""

    def __init__(self, expansion: Tensor, main: RidgeStream, compensation: RidgeStream, amount: float) -> None:
        super().__init__(expansion, main)
        self.compensation = compensation
        self.amount = amount

    def forward(self, features: Tensor) -> Tensor:
        z = features.to(self.expansion) @ self.expansion
        return z.relu() @ self.main.weight + self.amount * (z.tanh() @ self.compensation.weight)

    def remap_classes(self, groups: Groups) -> Self:
        streams = (self.main.remap_classes(groups), self.compensation.remap_classes(groups))
        return type(self)(self.expansion, *streams, self.amount)


class DualStream(Analytic):
    """argmax of ReLU(Z)·W_main + 𝒞·tanh(Z)·W_comp, with Z = f·B.

    The compensation stream learns the residual Y − ReLU(Z)·W_main of each task, with the main weights after that task,
    only in the columns of the task's own classes (columns of other classes are set to zero). It is computed in a second
    pass over the task, so it depends neither on the order of the images nor on the batches.
    """

    kind = "dual_stream"
    compensation: NonNegativeFloat = 0.6
    """𝒞; in 0..2, to be chosen on held-out training images of the first task."""
    gamma_compensation: PositiveFloat = 0.1

    def empty_state(self) -> DualStreamScorer:
        nothing = torch.zeros(0, 0, dtype=torch.float64)
        return DualStreamScorer(nothing, RidgeStream.empty(0), RidgeStream.empty(0), self.compensation)

    def start(self, features: int, generator: torch.Generator, device: torch.device | str = "cpu") -> DualStreamScorer:
        expansion = random_expansion(features, self.expansion_size, generator, device)
        main, beside = (RidgeStream.empty(self.expansion_size, device) for _ in range(2))
        return DualStreamScorer(expansion, main, beside, self.compensation)

    def after(
        self, known: AnalyticScorer, features: Tensor, targets: Tensor, columns: Sequence[int]
    ) -> DualStreamScorer:
        assert isinstance(known, DualStreamScorer)
        main = super().after(known, features, targets, columns).main
        own, classes = list(columns), main.cross.shape[1]
        labels = torch.tensor(columns, device=targets.device)[targets]

        def residuals() -> Iterator[tuple[Tensor, Tensor]]:
            for z, one_hot in known.blocks(features, labels, classes):
                residual = torch.zeros_like(one_hot)
                residual[:, own] = one_hot[:, own] - z.relu() @ main.weight[:, own]
                yield z.tanh(), residual

        beside = known.compensation.after(residuals(), classes, self.gamma_compensation)
        return DualStreamScorer(known.expansion, main, beside, self.compensation)

    def without(self, known: AnalyticScorer, features: Tensor, targets: Tensor) -> AnalyticScorer:
        raise UnsupportedError(
            f"images cannot be taken out of classifier {self.kind!r}: its second stream learned what the first left "
            "over at the time, which nobody knows any more; forget the class without its images"
        )

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> AnalyticScorer:
        raise UnsupportedError(
            f"two learners with classifier {self.kind!r} cannot be merged: the second stream of each learned what its "
            "own first stream left over, not what that of both leaves over; teach one the classes of the other, or use "
            "classifier.kind=analytic"
        )


@register_method(
    "dsal",
    title="DS-AL",
    family="frozen extractor",
    stores="two autocorrelations of all expanded features, and two vectors of that size per class",
    paper="Zhuang et al., AAAI 2024, arXiv 2403.17503",
)
def dsal() -> Method:
    """The method of the paper."""
    return Method(
        backbone=BackboneConfig(features=None),
        representation=base_training(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=DualStream(expansion_size=8192, gamma=0.1, gamma_compensation=0.1, compensation=0.6),
    )
