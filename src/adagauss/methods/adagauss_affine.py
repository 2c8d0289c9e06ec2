"""AdaGauss with the adapter in closed form.

    train F_t on task t with L_CE + α·L_AC + λ·L_PKD                      representation (see adagauss)
    P, b = ridge regression of F_t(x) on F_{t−1}(x) over task t           drift
    μ_c ← μ_c P + b and Σ_c ← PᵀΣ_c P for every old class c               drift
    store the new classes, predict by the Bayes rule                      memory, classifier (see adagauss)

A Gaussian stays a Gaussian under an affine map, so nothing is sampled or trained: the map takes milliseconds, the
published adapter a hundred epochs.
"""

from __future__ import annotations

from adagauss.drift import AffineMap
from adagauss.methods.adagauss import PAPER, REFERENCE, adagauss, without
from adagauss.methods.base import Method, register_method


@register_method(
    "adagauss-affine",
    title="AdaGauss, affine adapter",
    family="drift compensation",
    stores="mean and covariance of each class",
    paper="a variation of Rypesc et al., NeurIPS 2024, arXiv 2409.18265",
    presets={"paper": without(PAPER, "drift"), "reference": without(REFERENCE, "drift")},
    default_preset="reference",
)
def adagauss_affine() -> Method:
    """AdaGauss with a ridge map and exact transport."""
    return adagauss().with_changes(drift=AffineMap())
