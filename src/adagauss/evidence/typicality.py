"""How much an image looks like any class that is known, from one covariance for all classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adagauss import linalg
from adagauss.analytic.lda import oas_shrinkage
from adagauss.gaussians import ClassGaussians

RUNNERS_UP = 10


def typicality(scores: Tensor) -> Tensor:
    """The best score less the mean of the next `RUNNERS_UP`: how much better one class explains an image than others.

    It does not depend on what all scores have in common, such as how far an image is from everything in directions
    that tell no classes apart.
    """
    if scores.shape[1] < 2:
        return torch.zeros_like(scores[:, 0])
    best = scores.topk(min(1 + RUNNERS_UP, scores.shape[1])).values
    return best[:, 0] - best[:, 1:].mean(1)


def discriminants(means: Tensor, counts: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """(S, C) weights Σ⁻¹(μ_c − m) and biases −½(μ_c + m)ᵀΣ⁻¹(μ_c − m), m the mean of the means.

    Σ is the covariance ``within`` classes, shrunk by the oracle approximating shrinkage. The scores are
    log-likelihood ratios of each class against one at m with the same covariance.
    """
    scale = linalg.mean_diagonal(within)
    size, trace, square = len(within), float(within.trace()), float(within.square().sum())
    shrinkage = oas_shrinkage(trace, square, size, int(counts.sum()))
    identity = torch.eye(size, dtype=within.dtype, device=within.device)
    factor = linalg.safe_cholesky((1 - shrinkage) * within + shrinkage * scale * identity).factor
    centre = means.mean(0)
    weight = torch.cholesky_solve((means - centre).T, factor)
    bias = -((means + centre).T * weight).sum(0) / 2
    return weight, bias


class Typicality(nn.Module):
    """Features and scores to how typical the image is of what is known, 0 and above.

    Where covariances are remembered, the scores of a discriminant analysis with their mean take the place of the
    classifier's: distances with a covariance for each class tell unknown images worse (docs/confidence.md).
    """

    def __init__(self, weight: Tensor | None = None, bias: Tensor | None = None, power: float | None = None) -> None:
        super().__init__()
        self.power = power
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor | None
        self.bias: Tensor | None

    @classmethod
    def of(cls, memory: ClassGaussians, power: float | None = None) -> Typicality:
        """From what is remembered; ``power`` is that of Tukey's transform, if covariances are those of f^λ."""
        if memory.covariance == "none" or len(memory) < 2 or not bool((memory.counts > 1).any()):
            return cls()
        means = memory.means if power is None else memory.means.clamp_min(0).pow(power)
        weight, bias = discriminants(means, memory.counts, memory.pooled)
        return cls(weight.float().contiguous(), bias.float(), power)

    def forward(self, features: Tensor, scores: Tensor) -> Tensor:
        if self.weight is not None and self.bias is not None:
            points = features[:, : len(self.weight)]  # features of a companion come after those that are remembered
            points = points if self.power is None else points.clamp_min(0).pow(self.power)
            scores = torch.addmm(self.bias, points.to(self.weight), self.weight)
        return typicality(scores)
