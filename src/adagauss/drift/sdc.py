"""SDC's drift: an old mean moves like the current images around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import CurrentTask
from adagauss.drift.base import Drift

CLASS_BLOCK = 64
"""Number of classes whose distances to all images are computed at once."""


def kernel_weights(means: Tensor, points: Tensor, sigma: float | None) -> Tensor:
    """(C, N) weights exp(−‖x_i − μ_c‖² / 2σ²), each row summing to 1.

    A softmax subtracts the smallest distance first, so that far-away means do not underflow to 0/0. Without σ, 2σ² is
    each class's median squared distance: the kernel then has the scale of the features.
    """
    distances = torch.cdist(points, means).square().T
    if sigma is None:
        width = distances.median(dim=1, keepdim=True).values.clamp_min(torch.finfo(distances.dtype).tiny)
    else:
        width = distances.new_tensor(2 * sigma**2)
    return torch.softmax(-distances / width, dim=1)


class SDC(Drift):
    """μ_c ← μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)), w_ci a Gaussian kernel around μ_c among the F_{t−1}(x_i).

    With ``normalize`` the kernel compares directions (unit vectors), for which its σ was published; the averaged drift
    is that of the unnormalised features, so that the means remain means of features. Covariances, if any, are
    unchanged.
    """

    kind = "sdc"
    sigma: PositiveFloat | None = 0.2
    """None: from the median distance of each class."""
    normalize: bool = True
    views: NonNegativeInt = 0
    """Number of augmented copies of the task; 0: the plain images."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new, _ = now.pairs(self.views)
        old, new = old.double(), new.double()
        points, centres = (
            (F.normalize(old, dim=1), F.normalize(memory.means, dim=1)) if self.normalize else (old, memory.means)
        )
        blocks = [
            kernel_weights(block, points, self.sigma) @ (new - old) for block in torch.split(centres, CLASS_BLOCK)
        ]
        return memory.with_statistics(memory.means + torch.cat(blocks), None)
