"""IL2A (NeurIPS 2021): mixtures of classes are additional classes; old Gaussians are replayed without sampling.

    for task t = 1 … T:
        mix images of different classes; each pair of classes is a new class     label augmentation
        train F_t and the head over all outputs with CE (logits / 0.1)           cross-entropy
            + 10 · CE of random old classes c under the logits                   semantic (from t = 2)
                w_jᵀμ_c + b_j + (ratio/2)(w_j − w_c)ᵀ Σ_c (w_j − w_c)
            + 10 · ‖F_t(X) − F_{t−1}(X)‖_F                                       distillation (from t = 2)
        drop the outputs of the mixtures                                         representation
        for every new class c: μ_c, Σ_c of its augmented images                  memory
    predict the largest of the C outputs                                         classifier

``batch_size`` includes mixtures: 320 is 64 images and up to 4 mixtures of each. The published code pairs Σ with the
wrong class from the third task on; here μ_c and Σ_c are always those of class c. Tiny ImageNet uses batches of 100
images and mixtures between 0.3 and 0.7.
"""

from __future__ import annotations

from typing import Any

from adagauss.backbones import BackboneConfig
from adagauss.classifiers import LearnedHead
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import GaussianMemory
from adagauss.representation import Mixtures, Representation
from adagauss.representation.terms import CrossEntropy, NormDistillation
from adagauss.representation.terms.semantic import SemanticAugmentation

RECIPE = Recipe(
    epochs=101,
    batch_size=320,
    optimizer="adam",
    learning_rate=1e-3,
    weight_decay=2e-4,
    milestones=(44 / 101, 89 / 101),  # the published code steps its schedule at the start of an epoch
)

TINY: dict[str, Any] = {
    "representation.first.batch_size": 500,
    "representation.later.batch_size": 500,
    "representation.label_augmentation.between": (0.3, 0.7),
    "augmentation": Augmentation(crop_padding=0).model_dump(),
}


@register_method(
    "il2a",
    title="IL2A",
    family="prototype replay",
    stores="mean and covariance of each class",
    paper="Zhu et al., NeurIPS 2021",
    datasets={"tiny": TINY},
)
def il2a() -> Method:
    """Dual augmentation: of classes and of semantics."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(brightness=63 / 255),
        representation=Representation(
            first=RECIPE,
            later=RECIPE,
            heads="keep",
            train_old_heads=True,
            label_augmentation=Mixtures(times=4, alpha=20.0, between=(0.4, 0.6)),
            terms={
                "cross_entropy": CrossEntropy(over="seen", temperature=0.1),
                "semantic": SemanticAugmentation(weight=10.0, temperature=0.1, ratio=2.5),
                "distillation": NormDistillation(weight=10.0),
            },
        ),
        memory=GaussianMemory(covariance="full", augmented=True),
        drift=NoDrift(),
        classifier=LearnedHead(),
    )
