"""What the sums are solved for: linear scores, and the rules that give them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from adagauss.errors import ConfigError
from adagauss.sums.totals import FeatureSums

LEAST_FACTOR = 1e-4
"""Features weighed less than this are as good as left out."""


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

    ``scale`` are (width,) factors d ≥ 0 that weigh the features: the solution for x·d, as a map of x itself. The same
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


class Factors(NamedTuple):
    """(width,) positive factors in float64, and how many of the features really take part."""

    values: Tensor
    taking_part: int

    @classmethod
    def of(cls, sums: FeatureSums, scale: Tensor | None) -> Factors:
        """Factors of one where no scale is given; those of nothing become very small."""
        if scale is None:
            return cls(torch.ones_like(sums.total), sums.width)
        taking_part = int((scale > LEAST_FACTOR).sum())
        if taking_part == 0:
            raise ConfigError("all features are weighed with nothing: give one group of features a weight")
        return cls(scale.to(sums.total).clamp_min(LEAST_FACTOR), taking_part)
