"""DPCR (ICML 2025): second moments follow the extractor by two projections, and give a ridge regression.

    for task t = 1 … T:
        train F_t on task t as LwF does                                            representation (see lwf_base)
        if t > 1:
            P = (X_oᵀX_o + εI)⁻¹X_oᵀX_n, X_o and X_n old and new features of t     drift (task map)
            for every old class c: W_c = P·U_cU_cᵀ, U_c spanning its features,
                Φ_c ← W_cᵀΦ_cW_c,  μ_c ← μ_cW_c                                    drift (projection)
        for every new class c: Φ_c = Σ F_t(x)F_t(x)ᵀ and μ_c                       memory
        W = (Σ_c Φ_c + γI)⁻¹[n_cμ_c]_c, its columns w_c at unit length             classifier
        predict argmax_c F_t(x)·w_c                                                classifier

Φ_c = (n_c − 1)Σ_c + n_c·μ_cμ_cᵀ, so the Gaussians of the memory hold it. Here n_c are true counts, rank and ε are
relative to the features' scale, and all moments come from the plain images; the published code has a fixed n_c, an
absolute ε, and uses augmented images of the newest classes in W. The preset ``signed`` is for features behind a
bottleneck, whose scale is not that for which γ = 200 was chosen.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt
from torch import Tensor

from adagauss.classifiers.ridge import Ridge
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import ridge
from adagauss.core.task import CurrentTask
from adagauss.methods.base import Method, register_method
from adagauss.methods.lwf import lwf_with
from adagauss.parts.drift import Drift
from adagauss.parts.memory import GaussianMemory


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


DATASETS: dict[str, dict[str, Any]] = {
    "tiny": {"classifier.gamma": 2000.0, "representation.later.learning_rate": 0.001},
    "imagenet": {"classifier.gamma": 2000.0, "representation.terms.distillation.weight": 5.0},
    "cub": {"representation.terms.distillation.weight": 20.0},
}
SIGNED: dict[str, Any] = {"backbone.features": 64, "classifier.gamma": 0.1, "classifier.relative": True}


@register_method(
    "dpcr",
    title="DPCR",
    family="drift compensation",
    stores="mean and covariance of each class",
    paper="He et al., ICML 2025, arXiv 2503.05423",
    presets={"signed": SIGNED},
    datasets=DATASETS,
)
def dpcr() -> Method:
    """LwF, with moments moved by two projections and a ridge regression over them."""
    return lwf_with(
        DualProjection(epsilon=1e-9, tolerance=1e-5),
        memory=GaussianMemory(covariance="full"),
        classifier=Ridge(gamma=200.0),
    )
