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

from adagauss.classifiers.ridge import Ridge
from adagauss.drift.dual_projection import DualProjection
from adagauss.methods.base import Method, register_method
from adagauss.methods.lwf_base import lwf_with
from adagauss.parts.memory import GaussianMemory

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
