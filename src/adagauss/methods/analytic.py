"""Exact: features that stand still and a ridge regression of everything seen; nothing is trained and nothing drifts.

    once: a dictionary of whitened patches of photographs that belong to no task  backbone (patches)
    every task, with x the pooled answers of the dictionary to an image and to its mirror image, their mean:
        A ← A + xxᵀ,  C ← [C, Σx of each new class]                               classifier (sums)
        λ from arriving images, each left out in turn                             classifier (strength)
        W = (A + λ·mean(diag A)·I)⁻¹C, A and C about the means                    classifier (one factorisation)
    predict argmax_c (xW)_c

The preset ``large`` has 16,000 features of patches of three sizes, for which the sums take 1 GB; the composition has
4,000, for 64 MB.
Given λ, W depends neither on the order of the classes nor on their division into tasks. The preset ``first-task`` draws
the patches from the first task's images instead: a point better on CIFAR-100, where that has ten classes.


Exact-auto: patches and a pretrained network, both standing still, weighed by images left out in turn.

    once: a dictionary of whitened patches of photographs; the pretrained network as it is      backbone (still)
    every task, with x the features of both kinds, each scaled to weigh alike:
        A ← A + xxᵀ,  C ← [C, Σx of each new class]                                             classifier (sums)
        rule, λ and the weight d of each kind from arriving images, each left out in turn       classifier (choice)
        ridge: W = argmin Σ‖xW − y‖² + ρ Σ_i (W_i / d_i)², or discriminant analysis of x·d      classifier
    predict argmax_c (xW)_c

Mirror images (``backbone.mirror``) would double the time. Neither kind of features is best
everywhere: patches win on traffic signs and digits, pretrained ones on photographs of things. A weight is a penalty, so
both can be weighed anew in each task from the same sums.


Exact learning on a pretrained network that is never trained: a linear classifier from running sums.

    every task, with f the features of a fixed pretrained network:
        Σff^T, Σf and the number of images of each class                        classifier (sums)
        ridge regressions and discriminant analyses with one covariance         classifier (candidates)
        the best on arriving images, each left out in turn                      classifier (choice)
    predict argmax_c fW_c + b_c                                                 classifier

One covariance serves all classes: S²/2 + C·S numbers are kept instead of C·S².
"""

from __future__ import annotations

from adagauss.analytic.classifier import ExactBest, ExactRidge
from adagauss.backbones import BackboneConfig
from adagauss.backbones.frozen import FrozenOptions
from adagauss.backbones.patches import PatchSettings
from adagauss.backbones.registry import backbone_info
from adagauss.methods.base import Method, register_method
from adagauss.parts.drift import NoDrift
from adagauss.parts.memory import NoMemory
from adagauss.parts.representation import Representation

UNTRAINED = tuple(
    f"backbone.{name}" for name in ("name", "features", "weights", "input_size", "train_blocks", "batch_norm", "stem")
)
"""Settings of a network that is trained; protocols that set them do not speak to methods that train none."""


@register_method(
    "exact",
    title="Exact, patches",
    family="exact",
    stores="a dictionary of patches, the autocorrelation of all features, and one vector for each class",
    paper="this library; after Coates, Lee and Ng, 2011",
    presets={
        "large": {
            "backbone.options.filters": 2000,
            "backbone.options.scales": 3,
            "classifier.strengths": (30.0, 100.0, 300.0),
            "classifier.judged": 500,
        },
        "first-task": {"backbone.options.dictionary_from": "first_task"},
    },
    fixed=UNTRAINED,
)
def exact() -> Method:
    """A patch dictionary and a ridge regression from running sums."""
    return Method(
        backbone=BackboneConfig(name="patches", features=None, mirror=True, options=PatchSettings(filters=500)),
        representation=untrained(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=ExactRidge(intercept=True),
    )


def untrained() -> Representation:
    """Nothing is trained, in no task."""
    return Representation(first=None, later=None)


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
