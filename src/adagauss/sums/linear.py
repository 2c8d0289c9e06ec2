"""What the sums are solved for: linear scores, and the rules that give them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from adagauss.sums.totals import FeatureSums

LEAST_VARIANCE = 1e-4
"""Added to variances, relative to the usual one: features that hardly move are not blown up."""
ROUNDING = 1e-6
"""Added to variances, relative to the mean square of the feature: products of float32 features are not more exact."""
STILL_FACTOR = 1e-3
"""Of a feature that never moves, in units of the usual one: what is left of it is rounding."""


class Linear(NamedTuple):
    """Scores xW + b, one column per class."""

    weight: Tensor
    bias: Tensor

    def divided_by(self, temperature: float) -> Linear:
        """The same scores at a temperature."""
        return Linear(self.weight / temperature, self.bias / temperature)

    def __call__(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias.to(features), features, self.weight.to(features))


class Rule(Protocol):
    """A way from sums to linear scores.

    ``scale`` are (width,) factors d > 0 that weigh the features: the solution for x·d, as a map of x itself. The same
    sums serve any weights.
    """

    def solve(self, sums: FeatureSums, scale: Tensor | None = None) -> Linear:
        """The scores for all images in the sums."""
        ...

    def left_out(self, sums: FeatureSums, views: Tensor, targets: Tensor, scale: Tensor | None = None) -> Tensor:
        """(N, C) scores of images in the sums, each as if the sums had never seen it: no image judges itself.

        ``views`` are the (V, N, width) features of the views of each image, which leave together; its score is the mean
        over them. All come from one factorisation. Every image's class must keep another image.
        """
        ...


def factors_of(sums: FeatureSums, scale: Tensor | None) -> Tensor:
    """(width,) factors in float64; ones where none are given."""
    return torch.ones_like(sums.total) if scale is None else scale.to(sums.total)


def unit_deviation(sums: FeatureSums, features: slice = slice(None)) -> Tensor:
    """Factors that bring all features, or some, to a deviation of 1 within classes.

    The deviations come from the sums, so they are those of everything seen and not of the first task. Where no class
    has two images, the deviations over all images stand in. A feature that is the same in all images, such as that of a
    colour which no image has, counts almost nothing.
    """
    variance, overall = sums.variance_within()[features], sums.variance()[features]
    if not float(variance.sum()) > 0:
        variance = overall
    rounding = ROUNDING * sums.mean_square()[features]
    moves = overall > rounding
    variance = variance + rounding
    usual = variance[moves].median() if bool(moves.any()) else variance.new_ones(())
    return torch.where(moves, (variance + LEAST_VARIANCE * usual).rsqrt(), STILL_FACTOR * usual.rsqrt())
