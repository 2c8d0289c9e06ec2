"""One discriminant analysis for each group of features, and the mean of what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from adagauss.analytic.classifier import take_in, take_out
from adagauss.analytic.lda import Discriminant
from adagauss.analytic.moments import Linear, check_groups_fit, unit_deviation
from adagauss.backbones import Network
from adagauss.core.calibration import Fitted, HoldoutFitter, LeftOut, no_holdout_fit
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import Scorer, State, as_state
from adagauss.core.task import ClassEdit, CurrentTask, FitContext
from adagauss.parts.classifiers import Classifier
from adagauss.sums.grouped import GroupSums
from adagauss.utils.runtime import Runtime


class GroupedScorer(Scorer):
    """log mean_g softmax(x_g W_g + b_g) over the groups g of features, and the sums that W and b were solved from."""

    axes: ClassVar[Mapping[str, str]] = {"weight": "ec", "bias": "gc"}
    contents: ClassVar[str] = "for each group of E features the weights of each class, and the following sums"

    def __init__(self, sums: GroupSums, solved: Sequence[Linear] = ()) -> None:
        super().__init__()
        solved = solved or [Linear(torch.zeros(0, 0), torch.zeros(0))]
        self.sums = sums
        self.register_buffer("weight", torch.cat([one.weight for one in solved]))
        self.register_buffer("bias", torch.stack([one.bias for one in solved]))
        self.weight: Tensor
        self.bias: Tensor

    def check(self) -> None:
        """Raise a `DataError` if the groups do not belong together, or the weights not to them."""
        super().check()
        parts = self.sums.each()
        self.require(len(parts) == len(self.bias), "its weights are not those of its groups of features")
        for part in parts:
            part.check()
            self.require(part.counts.equal(parts[0].counts), "its groups of features are of different images")
            self.require(part.images == parts[0].images, "its groups of features are of different images")
        shape = (sum(self.sums.widths), parts[0].classes)
        self.require(tuple(self.weight.shape) == shape, f"its weights are not those of {shape[1]} classes in its sums")

    @property
    def class_sums(self) -> Tensor:
        return self.sums.cross

    def forward(self, features: Tensor) -> Tensor:
        widths = self.sums.widths
        parts = torch.split(features.to(self.weight), widths, 1)
        groups = zip(parts, torch.split(self.weight, widths), self.bias, strict=True)
        return mean_probability([torch.addmm(bias, some, weight) for some, weight, bias in groups])


class GroupedLDA(Classifier):
    """Linear discriminant analysis of each group of the network's features; their probabilities are averaged.

    Everything comes from sums, so the result depends neither on the order of the classes nor on their division into
    tasks.
    """

    kind = "grouped_lda"
    flips: bool = False
    """Count the mirror image of an image as another image of its class."""
    shrinkage: Annotated[float, Field(ge=0, le=1)] | None = None
    """τ of (1 − τ)Σ + τ·diag Σ; None: oracle approximating shrinkage, from the sums alone."""
    judged: PositiveInt = 1000
    """Images per task that show how truthful the answers are, each left out in turn."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.FROZEN_FEATURES})

    def empty_state(self) -> GroupedScorer:
        return GroupedScorer(GroupSums((0,)))

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Scorer:
        return self.update(memory, now, before).scorer

    def update(
        self, memory: ClassGaussians, now: CurrentTask, before: State | None, attempt: HoldoutFitter = no_holdout_fit
    ) -> Fitted:
        known = as_state(before, GroupedScorer)
        sums = GroupSums(now.network.extractor.groups).to(now.runtime.device) if known is None else known.sums.copy()
        views, targets = take_in(sums, now, self.flips, self.judged)
        return Fitted(self._of(sums), self._left_out(sums, views, targets))

    def check(self, network: Network, classes: int, runtime: Runtime) -> None:
        extractor, rows = network.extractor, self.judged * (2 if self.flips else 1)
        check_groups_fit(extractor.groups, classes, runtime.free_memory, extractor.trunk.smaller_setting_hint, rows)

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> GroupedScorer:
        assert isinstance(before, GroupedScorer)
        sums = before.sums.copy()
        if now.removed is not None:
            take_out(sums, now.removed, self.flips)
        return self._of(sums.regroup_(now.groups))

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> GroupedScorer:
        assert isinstance(one, GroupedScorer)
        assert isinstance(other, GroupedScorer)
        return self._of(one.sums.copy().merge_(other.sums, columns))

    def _of(self, sums: GroupSums) -> GroupedScorer:
        rule = Discriminant(self.shrinkage)
        return GroupedScorer(sums, [rule.solve(part, unit_deviation(part)) for part in sums.each()])

    def _left_out(self, sums: GroupSums, views: Tensor, targets: Tensor) -> LeftOut:
        """The answers to images in the sums, each left out in turn; those alone in their class are passed over."""
        others = sums.counts.cpu()[targets] > len(views)
        views, targets = views[:, others], targets[others]
        if len(targets) == 0:
            return LeftOut(views.new_zeros(0, len(sums.counts)), targets)
        rule, groups = Discriminant(self.shrinkage), zip(sums.each(), torch.split(views, sums.widths, 2), strict=True)
        return LeftOut(
            mean_probability([rule.left_out(part, some, targets, unit_deviation(part)) for part, some in groups]),
            targets,
        )


def mean_probability(scores: Sequence[Tensor]) -> Tensor:
    """log mean_g softmax(s_g) of the scores of each group."""
    return torch.logsumexp(torch.stack([torch.log_softmax(some, 1) for some in scores]), 0) - math.log(len(scores))
