"""Repeated draws from the stored classes, with factors that are computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from adagauss.gaussians import ClassGaussians


class Sampler:
    """Draws of N(μ_c, Σ_c + εI) for any list of classes, in float32."""

    def __init__(self, bank: ClassGaussians, jitter: float = 0.0) -> None:
        self.means = bank.means.float()
        self.factors = bank.factors(jitter, torch.float32)

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """One draw per entry of ``classes``, which are positions in the bank."""
        device = self.means.device
        noise = torch.randn(len(classes), self.means.shape[1], generator=generator).to(device)
        draws = self.means[classes.to(device)]
        # One product per class: gathering a factor for every draw would take S² numbers per draw.
        for index in sorted(set(classes.tolist())):
            rows = torch.nonzero(classes == index).flatten().to(device)
            draws[rows] += noise[rows] @ self.factors[index].T
        return draws
