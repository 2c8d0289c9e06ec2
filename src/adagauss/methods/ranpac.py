"""RanPAC (NeurIPS 2023): ridge regression over random features of a pretrained network.

    every task, with φ = ReLU(f·B), f of a frozen pretrained network, B Gaussian and fixed:
        G ← G + φφᵀ,  c_y ← c_y + φ                                 classifier (sums)
        λ from arriving images, each left out in turn               classifier (choice)
    predict argmax_y φᵀ(G + λI)⁻¹c_y                                classifier

The first session's adaptation of the network by adapters (PETL) is left out: this is the paper's frozen variant. λ is
relative to the mean diagonal of G, and evidence for it is collected over tasks and from images left out in turn, where
the paper takes a fifth of the last task's.
"""

from __future__ import annotations

from adagauss.analytic.classifier import ExactRidge
from adagauss.backbones import BackboneConfig
from adagauss.methods.analytic import UNTRAINED, untrained
from adagauss.methods.base import Method, register_method
from adagauss.parts.drift import NoDrift
from adagauss.parts.memory import NoMemory


@register_method(
    "ranpac",
    title="RanPAC, without adapters",
    family="exact",
    stores="autocorrelation of all random features, and one vector of that size for each class",
    paper="McDonnell et al., NeurIPS 2023, arXiv 2307.02251",
    fixed=UNTRAINED,
)
def ranpac() -> Method:
    """Random projections of a frozen pretrained network."""
    return Method(
        backbone=BackboneConfig(name="efficientnet_lite0", features=None),
        representation=untrained(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=ExactRidge(random_features=10_000),
    )
