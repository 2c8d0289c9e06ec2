"""Sums made ready for rules: features at one deviation, groups of them weighed, few images in a space of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.errors import ConfigError
from adagauss.sums.linear import Linear, Rule, unit_deviation
from adagauss.sums.span import Place, Span
from adagauss.sums.totals import FeatureSums

LEAST_FACTOR = 1e-4
"""Features weighed less than this, between others, are as good as left out."""


class Weighed(NamedTuple):
    """Sums under some weights of groups of features."""

    sums: FeatureSums
    features: slice
    """Those that take part."""
    scale: Tensor | None
    width: int
    """Number of all features."""
    within: tuple[Span, Place] | None = None
    """Where the sums are over coordinates of all features: in which space."""

    def left_out(self, rule: Rule, views: Tensor, targets: Tensor) -> Tensor:
        """The scores of a rule for (V, N, width) views of images in the sums, each left out in turn."""
        if self.within is None:
            return rule.left_out(self.sums, views[:, :, self.features], targets, self.scale)
        span, place = self.within
        return rule.left_out(self.sums, span.coordinates(views, place), targets)

    def solve(self, rule: Rule) -> Linear:
        """The scores of a rule, over all features."""
        solution = rule.solve(self.sums, self.scale)
        if self.within is not None:
            span, place = self.within
            return span.linear(solution, place)
        weight = solution.weight.new_zeros(self.width, self.sums.classes)
        weight[self.features] = solution.weight
        return Linear(weight, solution.bias)


class Weighing:
    """Sums, to be solved under several weights of groups of features; what these have in common is found once.

    ``groups`` are the sizes of the groups of features, in their order (None: all are one group). The sums must not
    change meanwhile.
    """

    def __init__(self, sums: FeatureSums, groups: Sequence[int] | None = None) -> None:
        self.sums = sums
        self.groups = [sums.width] if groups is None else list(groups)
        self._weighed: dict[tuple[float, ...], Weighed] = {}

    def at(self, weights: Sequence[float]) -> Weighed:
        """All features at one deviation within classes, times the weight of their group.

        A group weighs by its weight alone, however many features it has; those without weight at either end are left
        out of the sums. One weight alone is that of all features.
        """
        together = len(weights) == 1
        if not together and len(self.groups) != len(weights):
            raise ConfigError(f"there are {len(self.groups)} groups of features, but weights for {len(weights)}")
        if (known := self._weighed.get(tuple(weights))) is not None:
            return known
        each = list(weights) * (len(self.groups) if together else 1)
        some = [index for index, (weight, size) in enumerate(zip(each, self.groups, strict=True)) if weight and size]
        if not some:
            raise ConfigError("all groups of features are weighed with nothing: give one a weight")
        numbers = [self.sums.width] * len(self.groups) if together else self.groups
        factors = [weight / max(1, number) ** 0.5 for weight, number in zip(each, numbers, strict=True)]
        start, stop = sum(self.groups[: some[0]]), sum(self.groups[: some[-1] + 1])
        place = None if self._span is None else self._span.at(factors, stop - start)
        if self._span is not None and place is not None:
            # Small enough to be kept: the best weights are asked for again.
            found = Weighed(place.sums, slice(start, stop), None, self.sums.width, (self._span, place))
            return self._weighed.setdefault(tuple(weights), found)
        sums = self.sums if stop - start == self.sums.width else self.sums.part(start, stop)
        pairs = zip(factors, self.groups, strict=True)
        weight = torch.cat([torch.full((size,), max(LEAST_FACTOR, factor)) for factor, size in pairs])
        scale = (self._scale * weight.to(self._scale))[start:stop]
        return Weighed(sums, slice(start, stop), scale, self.sums.width)

    @cached_property
    def _scale(self) -> Tensor:
        """Of each feature, by what is usual in its group."""
        bounds = [0, *accumulate(self.groups)]
        return torch.cat([unit_deviation(self.sums, slice(*ends)) for ends in pairwise(bounds)])

    @cached_property
    def _span(self) -> Span | None:
        return Span.of(self.sums, self._scale, self.groups)
