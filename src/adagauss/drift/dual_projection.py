"""DPCR's drift: a linear map of the task in closed form, followed by a projection of each class onto its row space."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import ridge
from adagauss.core.task import CurrentTask
from adagauss.drift.base import Drift


def task_map(old: Tensor, new: Tensor, epsilon: float = 1e-9) -> Tensor:
    """P = (X_oᵀX_o + εI)⁻¹X_oᵀX_n on row vectors, ε relative to the mean diagonal of X_oᵀX_o."""
    scale = float(old.double().square().sum()) / old.shape[1]
    return ridge(old, new, epsilon * scale)


def row_space_projectors(moments: Tensor, tolerance: float = 1e-5) -> Tensor:
    """U_c U_cᵀ of second moments Φ_c, U_c its eigenvectors with eigenvalues above ``tolerance`` times the largest."""
    values, vectors = torch.linalg.eigh(moments)
    kept = vectors * (values > tolerance * values.amax(-1, keepdim=True)).unsqueeze(-2)
    projectors: Tensor = kept @ kept.mT
    return projectors


class DualProjection(Drift):
    """Old classes move by W_c = P·U_cU_cᵀ: Φ_c ← W_cᵀΦ_cW_c and μ_c ← μ_cW_c, hence Σ_c ← W_cᵀΣ_cW_c.

    The projection keeps the part of the mapped class that lies in the space it spanned before; a class with more images
    than features spans the whole space, and only P acts.
    """

    kind = "dual_projection"
    epsilon: NonNegativeFloat = 1e-9
    project: bool = True
    tolerance: NonNegativeFloat = 1e-5
    views: NonNegativeInt = 1
    """Augmented copies of the task from which P is estimated; 0: the plain images."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.MEANS, Requirement.COVARIANCES})

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new, _ = now.pairs(self.views)
        return self.transport(memory, task_map(old, new, self.epsilon))

    def transport(self, memory: ClassGaussians, mapping: Tensor) -> ClassGaussians:
        """Every class moved by ``mapping`` and its own projector."""
        maps = mapping.expand(len(memory), -1, -1)
        if self.project:
            maps = maps @ row_space_projectors(memory.second_moments, self.tolerance)
        means = (memory.means.unsqueeze(1) @ maps).squeeze(1)
        return memory.with_statistics(means, maps.mT @ memory.covariances @ maps)
