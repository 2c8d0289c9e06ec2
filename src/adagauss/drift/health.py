"""Whether a map from the old latent space to the new one can be trusted, measured on current images."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.core import linalg
from adagauss.core.gaussians import ClassGaussians

Map = Callable[[Tensor], Tensor]
MUCH_WORSE = 1.5
"""An adapter whose error is so many times that of the affine map has not learned what there was to learn."""
BAD = 0.5
"""A relative error below this is no reason to worry, whatever other maps reach."""
COLLAPSED = 2.0
"""A mean log-variance that is this much smaller, per feature, than that of the new classes: a deviation of 37 %."""
FLOOR = 1e-3
"""Added to covariances, relative to their mean diagonal: few images span few directions."""


def relative_error(mapping: Map, old: Tensor, new: Tensor) -> float:
    """Σ‖ψ(x) − y‖² / Σ‖y − ȳ‖²: 0 for a perfect map, 1 for one that knows the mean only."""
    with torch.no_grad():
        error = (mapping(old).double() - new.double()).square().sum()
    spread = (new.double() - new.double().mean(0)).square().sum()
    return float(error / spread.clamp_min(torch.finfo(torch.float64).tiny))


class Fit(NamedTuple):
    """Relative errors on current images, of a trained map, of the affine map in closed form, and of no map at all."""

    trained: float
    affine: float
    none: float

    @property
    def poor(self) -> bool:
        """Whether the trained map has failed: much worse than the others, and bad by itself."""
        return self.trained > BAD and self.trained > MUCH_WORSE * min(self.affine, self.none)


def fit_of(trained: Map, affine: Map, old: Tensor, new: Tensor) -> Fit:
    """How well each map explains pairs of features."""
    errors = [relative_error(mapping, old, new) for mapping in (trained, affine, lambda points: points)]
    return Fit(*errors)


def mean_log_variance(bank: ClassGaussians) -> float:
    """log|Σ̄| / S of the mean covariance of a bank."""
    covariance = linalg.shrink_to_identity(bank.mean_covariance, FLOOR)
    factor = linalg.safe_cholesky(covariance).factor
    return float(2 * factor.diagonal().log().sum()) / bank.size


def collapse(old: ClassGaussians, new: ClassGaussians) -> float | None:
    """How much smaller the old classes' mean log-variance is than that of others; None if not much, or not known."""
    if old.covariance == "none" or not len(old) or not len(new):
        return None
    lost = mean_log_variance(new) - mean_log_variance(old)
    return lost if lost > COLLAPSED else None


def collapse_warning(name: str, old: ClassGaussians, memory: ClassGaussians) -> str | None:
    """What to say if the old classes, moved, are far tighter than the new ones that joined them in ``memory``."""
    lost = collapse(old, memory.select([label for label in memory.labels if label not in old]))
    if lost is None:
        return None
    return (
        f"{name}: the Gaussians of old classes have collapsed (their mean log-variance is {lost:.1f} below that of the "
        "new classes), so that few images will be taken for them: use drift.kind=affine with "
        "drift.residual_covariance=1, or raise drift.anti_collapse"
    )
