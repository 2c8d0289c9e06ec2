"""The adapter in closed form: an affine map, under which a Gaussian stays a Gaussian."""

from __future__ import annotations

from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import affine_ridge, sample_covariance
from adagauss.core.task import CurrentTask
from adagauss.drift.base import Drift


class AffineMap(Drift):
    """z ↦ zP + b is the ridge regression of F_t(x) on F_{t−1}(x) over the current images; the transport is exact.

    μ_c ← μ_c P + b and Σ_c ← PᵀΣ_c P + r·R: nothing is sampled or trained. R is the covariance of the
    regression's residuals, the variance that a regression loses (law of total covariance).
    """

    kind = "affine"
    ridge: NonNegativeFloat = 1e-2
    """Penalty of the map, relative to the mean variance of the old features."""
    views: NonNegativeInt = 4
    """Augmented copies of the task that the map is fitted on; 0: the plain images."""
    residual_covariance: NonNegativeFloat = 0.0
    """r: how much of the residuals' covariance is added to each covariance (1: all of it)."""
    adapt_mean: bool = True
    adapt_covariance: bool = True

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new, _ = now.pairs(self.views)
        affine = affine_ridge(old, new, self.ridge)
        means = affine(memory.means) if self.adapt_mean else memory.means
        if memory.covariance == "none" or not self.adapt_covariance:
            return memory.with_statistics(means, None)
        extra: Tensor | float = 0.0
        if self.residual_covariance:
            extra = self.residual_covariance * sample_covariance(new.double() - affine(old))
        return memory.transport_affine(affine, extra).with_statistics(means, None)
