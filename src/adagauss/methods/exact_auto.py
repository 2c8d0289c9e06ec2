"""Exact-auto: patches and a pretrained network, both standing still, weighed by images left out in turn.

    once: a dictionary of whitened patches of photographs; the pretrained network as it is      backbone (still)
    every task, with x the features of both kinds, each scaled to weigh alike:
        A ← A + xxᵀ,  C ← [C, Σx of each new class]                                             classifier (sums)
        rule, λ and the weight d of each kind from arriving images, each left out in turn       classifier (choice)
        ridge: W = argmin Σ‖xW − y‖² + ρ Σ_i (W_i / d_i)², or discriminant analysis of x·d      classifier
    predict argmax_c (xW)_c

Mirror images (``backbone.mirror``) would double the time. Neither kind of features is best
everywhere: patches win on traffic signs and digits, pretrained ones on photographs of things. A weight is a penalty, so
both can be weighed anew in each task from the same sums.
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.backbones.frozen import FrozenOptions
from adagauss.backbones.registry import backbone_info
from adagauss.classifiers.exact import ExactBest
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.methods.exact import UNTRAINED, untrained
from adagauss.parts.memory import NoMemory

WEIGHTS = ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.3, 1.0))
"""Of patches and of the pretrained network."""
STRENGTHS, SHRINKAGES = (100.0, 1000.0), (0.3, 0.85)
"""Few, since each is tried with every weight: these were among the best on held-out images of four datasets."""


@register_method(
    "exact-auto",
    title="Exact, patches and pretrained network",
    family="exact",
    stores="a dictionary of patches, the autocorrelation of all features, and one vector for each class",
    paper="this library",
    fixed=UNTRAINED,
)
def exact_auto() -> Method:
    """Both kinds of features, or patches alone where no pretrained network is installed."""
    installed = backbone_info("efficientnet_lite0").available
    options = FrozenOptions() if installed else FrozenOptions(pretrained=None)
    return Method(
        backbone=BackboneConfig(name="still", features=None, options=options),
        representation=untrained(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=ExactBest(strengths=STRENGTHS, shrinkages=SHRINKAGES, group_weights=WEIGHTS),
    )
