"""Loss terms as pure functions of tensors."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.core.linalg import safe_cholesky, sample_covariance

Reduction = Literal["mean", "sum"]

COLLAPSED = 1e-6
"""Squared pivots below this share of the mean variance count as collapsed; this bounds the gradient of the loss."""


def anti_collapse(features: Tensor, beta: float = 1.0) -> Tensor:
    """L_AC = −(1/S) Σ_i min(a_i, β), with a the Cholesky diagonal of the minibatch's covariance (eq. 2).

    a_i is the standard deviation of feature i that the features before it do not explain, so the loss makes every
    direction have variance of its own, up to β. A batch of at most S images, or one whose features are linearly
    dependent, has a singular covariance: a jitter relative to its mean variance keeps loss and gradient finite. The
    computation is in float64. For fewer than two images the loss is zero.
    """
    if len(features) < 2:
        return features.sum() * 0.0
    covariance = sample_covariance(features.double())
    diagonal = safe_cholesky(covariance, floor=COLLAPSED).factor.diagonal()
    return -diagonal.clamp(max=beta).mean().to(torch.promote_types(features.dtype, torch.float32))


def squared_error(prediction: Tensor, target: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Mean over batch and dimensions (the published code), or the sum over both (the paper's text)."""
    return F.mse_loss(prediction, target, reduction=reduction)


def feature_norm(features: Tensor, previous: Tensor) -> Tensor:
    """‖F_t(X) − F_{t−1}(X)‖_F, neither squared nor averaged (PASS, IL2A), with zero gradient at zero."""
    squared = (features - previous).square().sum()
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, torch.ones_like(squared)).sqrt(), squared)


def logit_distillation(logits: Tensor, previous: Tensor, temperature: float = 2.0) -> Tensor:
    """−(1/B) Σ_b Σ_c softmax(o_old/T)_c · log softmax(o_new/T)_c, not multiplied by T² (LwF)."""
    teacher = F.softmax(previous / temperature, dim=1)
    return F.cross_entropy(logits / temperature, teacher)
