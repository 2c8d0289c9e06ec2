"""CIRCLE (2026): fixed random reservoirs, and one streaming discriminant analysis for each group of them.

    before any image: groups of random bidirectional two-dimensional reservoirs     backbone (reservoirs)
    every task, with x_g the pooled states of the reservoirs of group g:
        sums of x_g x_gᵀ and of x_g for each class                                  classifier (sums of each group)
        linear discriminant analysis of each group, one covariance for all classes  classifier
    predict argmax_c mean_g softmax(scores of group g)_c                            classifier

Known of the paper, from its abstract: features of fixed bidirectional two-dimensional reservoirs (adapted from BiRC2D),
never fitted to images; several random reservoirs in each feature ensemble; streaming LDA heads, one for each ensemble;
their softmax outputs averaged. Published for CIFAR-100 in 10 tasks: 45.3 A_last, 55.3 A_inc.

Not known, and chosen here: the recurrence (see `backbones/reservoirs.py`), the two directions (from the upper left and,
with the same weights, from the lower right), patches of 5 × 5 pixels at every second pixel as input, means over a 2 × 2
grid as features, all sizes and scales, oracle approximating shrinkage, no mirror images and no temperature. Sizes are
for CPUs, so that fewer and smaller reservoirs than the paper's may be expected to reach less.
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.grouped import GroupedLDA
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.methods.exact import UNTRAINED, untrained
from adagauss.parts.memory import NoMemory


@register_method(
    "circle",
    title="CIRCLE, as far as it is known",
    family="exact",
    stores="random reservoirs; for each group of them the autocorrelation of its features and one vector per class",
    paper="Jučas and Pan, 2026, arXiv 2606.27095",
    fixed=UNTRAINED,
)
def circle() -> Method:
    """An ensemble of discriminant analyses of random reservoirs."""
    return Method(
        backbone=BackboneConfig(name="reservoirs", features=None),
        representation=untrained(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=GroupedLDA(),
    )
