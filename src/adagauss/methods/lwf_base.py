"""The learner under SDC, LDC, ADC and DPCR: LwF, by default with nearest means; they differ in how these follow.

    first task:   cross-entropy                                                    representation
    later tasks:  cross-entropy over the new classes alone + 10·L_KD(old outputs)  representation
    remember the mean of each new class                                            memory
    predict the nearest mean among unit vectors                                    classifier

The published learners put a cosine head on the features while training; here it is linear, one block a task, and
thrown away for prediction all the same, and old blocks of it stay as they were. Settings are those for CIFAR-100.
"""

from __future__ import annotations

from typing import Any

from adagauss.backbones import BackboneConfig
from adagauss.classifiers import NearestMean
from adagauss.data.augment import Augmentation
from adagauss.drift import Drift
from adagauss.memory import GaussianMemory
from adagauss.methods.base import Method
from adagauss.representation import Representation
from adagauss.representation.terms import CrossEntropy, Distillation
from adagauss.training import Recipe

# On pretrained weights the trunk learns at a tenth of the rates: 0.01 and 0.005, as published for CUB.
FINE_GRAINED: dict[str, Any] = {"representation.terms.distillation.weight": 20.0}
DATASETS: dict[str, dict[str, Any]] = {
    "tiny": {"representation.later.learning_rate": 0.001, "augmentation.crop_padding": 4},
    "cub": FINE_GRAINED,
    "cars": FINE_GRAINED,
}
"""What the authors of LDC and ADC set on other datasets."""


def lwf_with(drift: Drift) -> Method:
    """LwF with nearest means that follow the extractor by ``drift``."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(crop_padding=4, flip=True, brightness=63 / 255, policy="autoaugment"),
        representation=Representation(
            first=Recipe(epochs=200, batch_size=128, learning_rate=0.1, weight_decay=5e-4, milestones=(0.3, 0.6, 0.8)),
            later=Recipe(epochs=100, batch_size=128, learning_rate=0.05, weight_decay=2e-4, milestones=(0.45, 0.9)),
            heads="keep",
            terms={
                "cross_entropy": CrossEntropy(over="current"),
                "distillation": Distillation(target="logit", weight=10.0, temperature=2.0),
            },
        ),
        memory=GaussianMemory(covariance="none"),
        drift=drift,
        classifier=NearestMean(normalise=True),
    )
