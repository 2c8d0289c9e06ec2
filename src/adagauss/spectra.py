"""What the eigenvalues of a covariance say: ranks, sizes of inverses, numbers of directions. Pure, batched functions.

A spectrum holds eigenvalues in its last axis, the largest first; any number of batch axes may come before it. Tiny
negative eigenvalues, which rounding leaves, count as zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

ABSOLUTE = 0.01
"""Tolerance of the published code: eigenvalues above it count, whatever their scale."""
RELATIVE = 1e-3
"""Tolerance relative to the largest eigenvalue."""


def spectrum(covariance: Tensor) -> Tensor:
    """Eigenvalues of symmetric matrices in float64, the largest first."""
    exact = covariance.double()
    values: Tensor = torch.linalg.eigvalsh((exact + exact.mT) / 2)
    return values.flip(-1)


def absolute_rank(values: Tensor, tolerance: float = ABSOLUTE) -> Tensor:
    """Number of λ_i > ε: it depends on the scale of the features."""
    count: Tensor = (values > tolerance).sum(-1)
    return count


def relative_rank(values: Tensor, tolerance: float = RELATIVE) -> Tensor:
    """Number of λ_i > ε·λ_1: the same at every scale."""
    count: Tensor = (values > tolerance * values[..., :1]).sum(-1)
    return count


def effective_rank(values: Tensor) -> Tensor:
    """exp(−Σ p_i log p_i), p_i = λ_i / Σλ: S for equal eigenvalues, 1 for one direction, 0 for none."""
    share = _shares(values)
    entropy: Tensor = -torch.xlogy(share, share).sum(-1)
    return torch.where(share.sum(-1) > 0, entropy.exp(), torch.zeros_like(entropy))


def directions(values: Tensor, share: float = 0.95) -> Tensor:
    """Number of leading λ_i whose running sum stays strictly below ``share``·Σλ, as the published code counts.

    One more is needed to reach the share (`directions_needed`).
    """
    count: Tensor = (_shares(values).cumsum(-1) < share).sum(-1)
    return count


def directions_needed(values: Tensor, share: float = 0.95) -> Tensor:
    """Smallest k with λ_1 + … + λ_k ≥ ``share``·Σλ; at most the number of eigenvalues."""
    return (directions(values, share) + 1).clamp_max(values.shape[-1])


def inverse_norm(values: Tensor) -> Tensor:
    """‖Σ⁻¹‖_F = √(Σ 1/λ_i²); infinite for a singular matrix."""
    smallest: Tensor = (1 / values.clamp_min(0)).square().sum(-1).sqrt()
    return smallest


def condition_number(values: Tensor) -> Tensor:
    """λ_1 / λ_S; infinite for a singular matrix."""
    smallest: Tensor = values[..., -1].clamp_min(0)
    return torch.where(smallest > 0, values[..., 0] / smallest, torch.full_like(smallest, torch.inf))


def _shares(values: Tensor) -> Tensor:
    """λ_i / Σλ; zeros for the zero matrix."""
    positive = values.clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return positive / torch.where(total > 0, total, torch.ones_like(total))
