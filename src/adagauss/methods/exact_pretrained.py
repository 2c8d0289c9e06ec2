"""Exact learning on a pretrained network that is never trained: linear discriminant analysis from running sums.

    every task, with f the features of a fixed pretrained network:
        Σff^T, Σf and the number of images of each new class                    classifier (sums)
        Σ = the covariance within classes, shrunk as far as the data ask for    classifier (OAS)
    predict argmax_c f·Σ⁻¹μ_c − ½μ_cᵀΣ⁻¹μ_c                                      classifier

One covariance serves all classes: S² + C·S numbers are kept instead of C·S².
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.exact import ExactLDA
from adagauss.drift import NoDrift
from adagauss.memory import NoMemory
from adagauss.methods.base import Method, register_method
from adagauss.methods.exact import UNTRAINED, untrained


@register_method(
    "exact-pretrained",
    title="Exact, pretrained network",
    family="exact",
    stores="mean of each class, one covariance for all",
    paper="this library; streaming discriminant analysis",
    fixed=UNTRAINED,
)
def exact_pretrained() -> Method:
    """A frozen pretrained network and streaming linear discriminant analysis."""
    return Method(
        backbone=BackboneConfig(name="efficientnet_lite0", features=None),
        representation=untrained(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=ExactLDA(),
    )
