"""Sums made ready for rules: features at one deviation, groups of them weighed, few images in a space of their own."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The features that take part, their sums, and what they are weighed by."""

    sums: FeatureSums
    features: slice
    scale: Tensor | None
    width: int
    """Number of all features."""
    within: tuple[Span, Place] | None = None
    """Where the sums are over coordinates: in which space."""

    def left_out(self, rule: Rule, views: Tensor, targets: Tensor) -> Tensor:
        """The scores of a rule for (V, N, width) views of images in the sums, each left out in turn."""
        if self.within is None:
            return rule.left_out(self.sums, views[:, :, self.features], targets, self.scale)
        span, place = self.within
        return rule.left_out(self.sums, span.coordinates(views, place), targets)

    def solve(self, rule: Rule) -> Linear:
        """The scores of a rule, over all features."""
        weight, bias = rule.solve(self.sums, self.scale)
        if self.within is not None:
            span, place = self.within
            weight, bias = span.linear(Linear(weight, bias), place)
        full = weight.new_zeros(self.width, len(bias))
        full[self.features] = weight
        return Linear(full, bias)


class Weighing:
    """Sums, solved under several weights of groups of features; what these have in common is found once.

    ``groups`` are the sizes of the groups of features, in their order (None: all are one group). The sums must not
    change meanwhile.
    """

    def __init__(self, sums: FeatureSums, groups: Sequence[int] | None = None) -> None:
        self.sums = sums
        self.groups = [sums.width] if groups is None else list(groups)
        self._spans: dict[tuple[int, int], Span | None] = {}
        self._weighed: dict[tuple[float, ...], Weighed] = {}

    def at(self, weights: Sequence[float]) -> Weighed:
        """All features at one deviation within classes, times the weight of their group.

        A group weighs by its weight alone, however many features it has; those without weight at either end are left
        out of the sums.
        """
        if (found := self._weighed.get(tuple(weights))) is not None:
            return found
        sizes = [self.sums.width] if len(weights) == 1 else self.groups
        if len(sizes) != len(weights):
            raise ConfigError(f"there are {len(sizes)} groups of features, but weights for {len(weights)}")
        some = [index for index, (weight, size) in enumerate(zip(weights, sizes, strict=True)) if weight and size]
        if not some:
            raise ConfigError("all groups of features are weighed with nothing: give one a weight")
        kept = range(some[0], some[-1] + 1)
        start = sum(sizes[: kept.start])
        features = slice(start, start + sum(sizes[index] for index in kept))
        scale = unit_deviation(self.sums, features)
        inner = [sizes[index] for index in kept]
        factors = [max(LEAST_FACTOR, weights[index] / max(1, sizes[index]) ** 0.5) for index in kept]
        span = self._span(features, scale, inner)
        place = None if span is None else span.at(factors)
        if span is not None and place is not None:
            # Small enough to be kept: the best weights are asked for again.
            found = Weighed(place.sums, features, None, self.sums.width, (span, place))
            return self._weighed.setdefault(tuple(weights), found)
        whole = features.stop - features.start == self.sums.width
        sums = self.sums if whole else self.sums.part(features.start, features.stop)
        weight = torch.cat([torch.full((size,), factor) for size, factor in zip(inner, factors, strict=True)])
        return Weighed(sums, features, scale * weight.to(scale), self.sums.width)

    def _span(self, features: slice, scale: Tensor, sizes: Sequence[int]) -> Span | None:
        key = (features.start, features.stop)
        if key not in self._spans:
            self._spans[key] = Span.of(self.sums, features, scale, sizes)
        return self._spans[key]
