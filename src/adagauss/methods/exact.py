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
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.exact import ExactRidge
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import NoMemory
from adagauss.patches import PatchSettings
from adagauss.representation import Representation

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
