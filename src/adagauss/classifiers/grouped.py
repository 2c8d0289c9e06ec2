"""One discriminant analysis for each group of features, and the mean of what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adagauss.classifiers.base import Attempt, Classifier, Fitted, Scorer, no_attempt
from adagauss.classifiers.exact import take_out
from adagauss.gaussians import ClassGaussians
from adagauss.needs import Need
from adagauss.state import Learned, recalled
from adagauss.sums import Discriminant, GroupSums, Linear
from adagauss.sums.linear import unit_deviation
from adagauss.task import CurrentTask, Occasion, Upkeep


class GroupedScorer(Scorer):
    """log mean_g softmax(x_g W_g + b_g) over the groups g of features, and the sums that W and b were solved from."""

    axes: ClassVar[Mapping[str, str]] = {"weight": "ec", "bias": "gc"}
    keeps: ClassVar[str] = "for each group of E features the weights of each class, and the following sums"

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
        said = [torch.log_softmax(torch.addmm(bias, some, weight), 1) for some, weight, bias in groups]
        return torch.logsumexp(torch.stack(said), 0) - math.log(len(said))


class GroupedLDA(Classifier):
    """Linear discriminant analysis of each group of the network's features; their probabilities are averaged.

    Everything comes from sums, so the result depends neither on the order of the classes nor on their division into
    tasks.
    """

    kind = "grouped_lda"
    flips: bool = False
    """Count the mirror image of an image as an image of its class."""
    shrinkage: Annotated[float, Field(ge=0, le=1)] | None = None
    """τ of (1 − τ)Σ + τ·diag Σ; None: oracle approximating shrinkage, from the sums alone."""

    @property
    def requires(self) -> frozenset[Need]:
        return frozenset({Need.STILL_FEATURES})

    def empty_state(self) -> GroupedScorer:
        return GroupedScorer(GroupSums((0,)))

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: Learned | None) -> GroupedScorer:
        known = recalled(before, GroupedScorer)
        sums = GroupSums(now.network.extractor.groups).to(now.runtime.device) if known is None else known.sums.copy()
        columns, classes = torch.tensor(now.columns), len(now.all_classes)
        for rows, views in now.blocks(self.flips):
            for view in views:
                sums.add_(view, columns[now.data.targets[rows]], classes)
        return self._of(sums)

    def update(
        self, memory: ClassGaussians, now: CurrentTask, before: Learned | None, attempt: Attempt = no_attempt
    ) -> Fitted:
        trial = attempt()
        if trial is None:
            return Fitted(self.fit(memory, now, before))
        # Sums only add up: the images that were left out come to the others, and features are computed once.
        return Fitted(self.fit(memory, trial.left, trial.scorer))

    def regrouped(self, memory: ClassGaussians, now: Upkeep, before: Scorer) -> GroupedScorer:
        assert isinstance(before, GroupedScorer)
        sums = before.sums.copy()
        if now.removed is not None:
            take_out(sums, now.removed, self.flips)
        return self._of(sums.regroup_(now.groups))

    def merged(
        self, memory: ClassGaussians, now: Occasion, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> GroupedScorer:
        assert isinstance(one, GroupedScorer)
        assert isinstance(other, GroupedScorer)
        return self._of(one.sums.copy().merge_(other.sums, columns))

    def _of(self, sums: GroupSums) -> GroupedScorer:
        rule = Discriminant(self.shrinkage)
        return GroupedScorer(sums, [rule.solve(part, unit_deviation(part)) for part in sums.each()])
