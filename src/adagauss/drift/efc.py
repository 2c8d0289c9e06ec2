"""EFC's drift: like SDC's, with distances weighted by their effect on the old outputs."""

from __future__ import annotations

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import CurrentTask
from adagauss.drift.base import Drift


def metric_weights(means: Tensor, points: Tensor, matrix: Tensor, sigma: float) -> Tensor:
    """(C, N) weights exp(s_ci / 2σ²), each row summing to 1.

    s_ci = −(x_i − μ_c)ᵀE(x_i − μ_c), scaled to 0..1 over the whole matrix; expanding the square keeps memory at C·N.
    """
    mapped = points @ matrix
    distances = (mapped * points).sum(1) - 2 * means @ mapped.T + ((means @ matrix) * means).sum(1, keepdim=True)
    spread = (distances.max() - distances.min()).clamp_min(torch.finfo(distances.dtype).tiny)
    return torch.softmax((distances.max() - distances) / spread / (2 * sigma**2), dim=1)


class EFC(Drift):
    """μ_c ← μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)), w_ci a kernel in the metric of the Empirical Feature Matrix.

    The matrix was measured at the end of the previous task; the term ``feature_matrix`` of the representation stores
    and shares it. Covariances are unchanged.
    """

    kind = "efc"
    sigma: PositiveFloat = 0.2
    views: PositiveInt = 1
    """Number of augmented copies of the task."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.MEANS, Requirement.FEATURE_MATRIX})

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new, _ = now.pairs(self.views)
        old, new = old.double(), new.double()
        weights = metric_weights(memory.means, old, now.shared["feature_matrix"].double(), self.sigma)
        return memory.with_statistics(memory.means + weights @ (new - old), None)
