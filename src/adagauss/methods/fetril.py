"""FeTrIL (WACV 2023): old classes are represented by features of new classes, translated to the old means.

    task 1: train F with L_CE, then freeze it                            representation
    every task:
        for every new class c: μ_c, the mean of its features             memory
        for every old class p: n(p) = the new class with nearest mean,
            pseudo-features F(x) − μ_n(p) + μ_p of all x in n(p)         classifier (pseudo_features)
        linear classifier on new features and old pseudo-features        classifier (svm, or fc)

The preset ``fc`` is FeTrIL-fc as in later implementations: a trained layer, and cosine similarity. The training of the
first task also follows them (the paper adds a second training with AugMix).
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.translated import TranslatedSVM
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import MeanMemory
from adagauss.representation import Representation
from adagauss.representation.terms import CrossEntropy


@register_method(
    "fetril",
    title="FeTrIL",
    family="frozen extractor",
    stores="mean of each class",
    paper="Petit et al., WACV 2023, arXiv 2211.13131",
    presets={"fc": {"classifier.kind": "translated_linear", "classifier.similarity": "cosine"}},
)
def fetril() -> Method:
    """The method of the paper, with support vector machines."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(brightness=63 / 255, policy="autoaugment"),
        representation=Representation(
            first=Recipe(epochs=200, batch_size=128, schedule="cosine"),
            later=None,
            terms={"cross_entropy": CrossEntropy()},
        ),
        memory=MeanMemory(),
        drift=NoDrift(),
        classifier=TranslatedSVM(similarity="euclidean", cost=1.0),
    )
