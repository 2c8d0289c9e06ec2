"""IL2A's class augmentation: mixtures of two classes are additional classes during the training of a task."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from adagauss.representation.label_augmentation import LabelAugmentation


class Mixtures(LabelAugmentation):
    """Every image is mixed with ``times`` random others, λx + (1 − λ)x'; each pair of classes has its own label.

    λ ~ Beta(α, α); λ outside ``between`` is set to ½, so that no mixture resembles one of its two classes. Pairs of
    images of the same class are left out.
    """

    kind = "mixtures"
    times: NonNegativeInt = 4
    alpha: PositiveFloat = 20.0
    between: tuple[float, float] = (0.4, 0.6)

    def copies(self, first: bool) -> int:
        return 1 + self.times

    def auxiliary_outputs(self, classes: int, first: bool) -> int:
        return classes * (classes - 1) // 2 if self.times else 0

    def augment(
        self, images: Tensor, targets: Tensor, classes: int, first: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        number, device = len(images), images.device
        one = torch.arange(number).repeat(self.times)
        other = torch.stack([torch.randperm(number, generator=generator) for _ in range(self.times)]).flatten()
        shares = self.shares(len(one), generator)
        differ = (targets[one.to(device)] != targets[other.to(device)]).cpu()
        one, other, shares = (values[differ].to(device) for values in (one, other, shares))
        share = shares.view(-1, 1, 1, 1).to(images.dtype)
        mixed = share * images[one] + (1 - share) * images[other]
        labels = classes + pair_index(targets[one], targets[other], classes)
        return torch.cat([images, mixed]), torch.cat([targets, labels])

    def shares(self, number: int, generator: torch.Generator) -> Tensor:
        """``number`` draws of λ."""
        # Torch draws from a Beta distribution only with its global random state; this uses the generator.
        seed = int(torch.randint(2**63 - 1, (1,), generator=generator))
        drawn = torch.from_numpy(np.random.default_rng(seed).beta(self.alpha, self.alpha, number))
        low, high = self.between
        return torch.where((drawn < low) | (drawn > high), 0.5, drawn)


def pair_index(one: Tensor, other: Tensor, classes: int) -> Tensor:
    """Position of the pair {a, b}, a < b, among all m(m − 1)/2 pairs of m classes: (2m − a − 1)a/2 + b − a − 1."""
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    return (2 * classes - low - 1) * low // 2 + high - low - 1
