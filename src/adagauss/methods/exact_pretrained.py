"""Exact learning on a pretrained network that is never trained: a linear classifier from running sums.

    every task, with f the features of a fixed pretrained network:
        Σff^T, Σf and the number of images of each class                        classifier (sums)
        ridge regressions and discriminant analyses with one covariance         classifier (candidates)
        the best on arriving images, each left out in turn                      classifier (choice)
    predict argmax_c fW_c + b_c                                                 classifier

One covariance serves all classes: S²/2 + C·S numbers are kept instead of C·S².
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.exact import ExactBest
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.methods.exact import UNTRAINED, untrained
from adagauss.parts.memory import NoMemory


@register_method(
    "exact-pretrained",
    title="Exact, pretrained network",
    family="exact",
    stores="the autocorrelation of all features, and one vector for each class",
    paper="this library; streaming discriminant analysis and ridge regression",
    fixed=UNTRAINED,
)
def exact_pretrained() -> Method:
    """A frozen pretrained network and the best linear classifier that sums can give."""
    return Method(
        backbone=BackboneConfig(name="efficientnet_lite0", features=None),
        representation=untrained(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=ExactBest(),
    )
