"""DPCR (ICML 2025): second moments follow the extractor by two projections, and give a ridge regression.

    for task t = 1 … T:
        train F_t on task t as LwF does                                            representation (see lwf)
        if t > 1:
            P = (X_oᵀX_o + εI)⁻¹X_oᵀX_n, X_o and X_n old and new features of t     drift (task map)
            for every old class c: W_c = P·U_cU_cᵀ, U_c spanning its features,
                Φ_c ← W_cᵀΦ_cW_c,  μ_c ← μ_cW_c                                    drift (projection)
        for every new class c: Φ_c = Σ F_t(x)F_t(x)ᵀ and μ_c                       memory
        W = (Σ_c Φ_c + γI)⁻¹[n_cμ_c]_c, its columns w_c at unit length             classifier
        predict argmax_c F_t(x)·w_c                                                classifier

Φ_c = (n_c − 1)Σ_c + n_c·μ_cμ_cᵀ, so the Gaussians of the memory hold it. Here n_c are true counts, rank and ε are
relative to the features' scale, and all moments come from the plain images; the published code has a fixed n_c, an
absolute ε, and uses augmented images of the newest classes in W. Its projectors keep every direction, because a float32
eigenvalue is rarely zero: the preset ``published`` leaves them out. On CUB its network is not pretrained. γ = 200 is
for features without a bottleneck; behind one, use ``classifier.gamma=0.1`` with ``classifier.relative=true``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import mean_diagonal, solve_ridge
from adagauss.core.state import State
from adagauss.core.task import CurrentTask, FitContext
from adagauss.methods.base import Method, register_method
from adagauss.methods.lwf import linear_map, lwf_with
from adagauss.parts.classifiers import LinearScorer, MemoryClassifier
from adagauss.parts.drift import Drift
from adagauss.parts.memory import GaussianMemory


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
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS, Requirement.COVARIANCES})
    epsilon: NonNegativeFloat = 1e-9
    project: bool = True
    tolerance: NonNegativeFloat = 1e-5
    views: NonNegativeInt = 1
    """Augmented copies of the task from which P is estimated; 0: the plain images."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new = now.pairs(self.views)
        return self.transport(memory, linear_map(old, new, self.epsilon))

    def transport(self, memory: ClassGaussians, mapping: Tensor) -> ClassGaussians:
        """Every class moved by ``mapping`` and its own projector."""
        maps = mapping.expand(len(memory), -1, -1)
        if self.project:
            maps = maps @ row_space_projectors(memory.second_moments, self.tolerance)
        means = (memory.means.unsqueeze(1) @ maps).squeeze(1)
        return memory.with_statistics(means, maps.mT @ memory.covariances @ maps)


def ridge_from_statistics(memory: ClassGaussians, gamma: float, relative: bool = False) -> Tensor:
    """(S, C) weights W = (Σ_c Φ_c + γI)⁻¹[n_1μ_1 … n_Cμ_C], the regression of one-hot labels on all features ever seen.

    Φ_c = Σ_i f_i f_iᵀ is the uncentred second moment of class c; with ``relative``, γ is in units of the mean diagonal
    of ΣΦ_c, so that one value suits any number, size and scale of features.
    """
    right = (memory.counts.double().unsqueeze(1) * memory.means).T
    gram = memory.mixed(memory.freedom) + right @ memory.means  # without the matrices of all classes in memory
    return solve_ridge(gram, right, gamma * float(mean_diagonal(gram)) if relative else gamma)


class Ridge(MemoryClassifier):
    """argmax_c f·w_c, with unit columns w_c if ``normalize_columns``, and no bias."""

    kind = "ridge"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS, Requirement.COVARIANCES})
    gamma: PositiveFloat = 200.0
    relative: bool = False
    """Whether γ is in units of the features' mean square, summed over images (then 0.01 to 0.1 is usual)."""
    normalize_columns: bool = True
    """Unit columns: a class then has no advantage from more images or larger features."""

    def fit(self, memory: ClassGaussians, now: FitContext, before: State | None = None) -> LinearScorer:
        weight = ridge_from_statistics(memory, self.gamma, self.relative).T
        if self.normalize_columns:
            weight = F.normalize(weight, dim=1)
        weight = weight.float().contiguous()
        return LinearScorer(weight, weight.new_zeros(len(memory)))


DATASETS: dict[str, dict[str, Any]] = {"tiny": {"classifier.gamma": 2000.0}, "imagenet": {"classifier.gamma": 2000.0}}
"""The published code also assigns rates and weights of the distillation per dataset, but does not use them."""


@register_method(
    "dpcr",
    title="DPCR",
    family="drift compensation",
    stores="mean and covariance of each class",
    paper="He et al., ICML 2025, arXiv 2503.05423",
    recipe="authors",
    presets={"published": {"drift.project": False}},
    datasets=DATASETS,
)
def dpcr() -> Method:
    """LwF, with moments moved by two projections and a ridge regression over them."""
    return lwf_with(
        DualProjection(epsilon=1e-9, tolerance=1e-5),
        memory=GaussianMemory(covariance="full"),
        classifier=Ridge(gamma=200.0),
    )
