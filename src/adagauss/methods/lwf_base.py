"""The base of SDC, LDC, ADC and DPCR: LwF, by default with nearest means; they differ in the drift.

    first task:   cross-entropy                                                    representation
    later tasks:  cross-entropy over the new classes + 10·L_KD(old outputs)        representation
    store the mean of each new class                                               memory
    predict the nearest mean among unit vectors                                    classifier

The outputs are scaled cosines during training, and are not used for prediction; those of old classes are fixed.
Settings are those for CIFAR-100.
"""

from __future__ import annotations

from typing import Any

from adagauss.backbones import BackboneConfig
from adagauss.classifiers import Classifier, NearestMean
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.drift import Drift
from adagauss.methods.base import Method
from adagauss.parts.memory import MeanMemory, Memory
from adagauss.representation import Representation
from adagauss.representation.terms import CrossEntropy, LogitDistillation

# On pretrained weights the trunk learns at a tenth of the rates: 0.01 and 0.005, as published for CUB.
FINE_GRAINED: dict[str, Any] = {"representation.terms.distillation.weight": 20.0}
DATASETS: dict[str, dict[str, Any]] = {
    "tiny": {"representation.later.learning_rate": 0.001, "augmentation.crop_padding": 4},
    "cub": FINE_GRAINED,
    "cars": FINE_GRAINED,
}
"""Settings of the authors of LDC and ADC for other datasets."""


def lwf_with(drift: Drift, memory: Memory | None = None, classifier: Classifier | None = None) -> Method:
    """LwF with class statistics that follow the extractor by ``drift``; by default, nearest means."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(crop_padding=4, flip=True, brightness=63 / 255, policy="autoaugment"),
        representation=Representation(
            first=Recipe(epochs=200, batch_size=128, learning_rate=0.1, weight_decay=5e-4, milestones=(0.3, 0.6, 0.8)),
            later=Recipe(epochs=100, batch_size=128, learning_rate=0.05, weight_decay=2e-4, milestones=(0.45, 0.9)),
            heads="keep",
            head="cosine",
            terms={
                "cross_entropy": CrossEntropy(over="current"),
                "distillation": LogitDistillation(weight=10.0, temperature=2.0),
            },
        ),
        memory=memory or MeanMemory(),
        drift=drift,
        classifier=classifier or NearestMean(normalize=True),
    )
