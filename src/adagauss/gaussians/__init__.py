"""Statistics of classes: a count, a mean and a covariance each, or one covariance of all."""

import torch

from adagauss.gaussians.bank import ClassGaussians, Map
from adagauss.gaussians.forms import CovarianceKind
from adagauss.gaussians.shared import SharedGaussians
from adagauss.gaussians.statistics import RANK, Label

__all__ = ["RANK", "ClassGaussians", "CovarianceKind", "Label", "Map", "SharedGaussians", "new_bank"]


def new_bank(
    size: int, covariance: CovarianceKind, device: torch.device | str = "cpu", rank: int = RANK
) -> ClassGaussians:
    """An empty bank of any kind; ``rank`` is the number of factors of ``low_rank``."""
    kind = SharedGaussians if covariance == "shared" else ClassGaussians
    return kind(size, covariance, device, rank)
