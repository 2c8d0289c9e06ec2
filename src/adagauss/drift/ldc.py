"""LDC's drift: one linear map from the old latent space to the new one."""

from __future__ import annotations

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import Affine, ridge
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe, train
from adagauss.drift.base import Drift
from adagauss.drift.maps import MapObjective, ViewBatches


def linear_map(old: Tensor, new: Tensor, amount: float) -> Tensor:
    """argmin_W ‖XW − Y‖² + ρ‖W − I‖² with ρ = amount · mean(diag XᵀX): directions without data do not move."""
    scale = float(old.double().square().sum() / old.shape[1])
    return ridge(old, new, amount * scale, toward=torch.eye(old.shape[1], dtype=torch.float64, device=old.device))


class LDC(Drift):
    """μ_c ← μ_c W with W linear, without bias, from F_{t−1}(x) to F_t(x) on the current images, in closed form.

    W is shrunk toward the identity. Covariances, if any, become WᵀΣW, which is exact although not in the paper.
    """

    kind = "ldc"
    ridge: NonNegativeFloat = 1e-3
    """Shrinkage toward the identity, relative to the mean square of a feature."""
    views: PositiveInt = 4
    """Augmented copies of the task for the fit: more than one helps if a task has few images."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new, _ = now.pairs(self.views)
        return _transported(memory, linear_map(old, new, self.ridge))


class TrainedLDC(Drift):
    """The authors' fit of LDC's map: a randomly initialised layer trained with Adam."""

    kind = "ldc_trained"
    views: PositiveInt = 4
    """Augmented copies of the task; each epoch uses one of them."""
    adam: Recipe = Field(
        default_factory=lambda: Recipe(
            epochs=20,
            batch_size=128,
            optimizer="adam",
            learning_rate=1e-3,
            weight_decay=0.0,
            schedule="constant",
            drop_last=False,
        )
    )

    least_steps: NonNegativeInt = 500
    """Steps of the training at the least: a small task is passed over several times per epoch."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new, _ = now.pairs(self.views)
        size = old.shape[1]
        with now.runtime.seeded(now.name, "linear map initialisation"):
            layer = nn.Linear(size, size, bias=False).to(now.runtime.device)
        batches = ViewBatches(old, new, self.views, self.adam, self.least_steps)
        train(MapObjective(layer), batches, self.adam, now.runtime, f"{now.name}: linear map")
        return _transported(memory, layer.weight.detach().T.double())


def _transported(memory: ClassGaussians, weight: Tensor) -> ClassGaussians:
    return memory.transport_affine(Affine(weight, torch.zeros_like(weight[0])))
