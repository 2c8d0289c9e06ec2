"""PASS (CVPR 2021): means of old classes are replayed with noise; rotations are additional classes.

    for task t = 1 … T:
        every image in 4 rotations, each rotation of a class is a new class     label augmentation
        train F_t and one head over all 4·C outputs with CE (logits / 0.1)      cross-entropy
            + 10 · CE of μ_c + r·ε for random old classes c, ε ~ N(0, I)        prototypes (from t = 2)
            + 10 · ‖F_t(X) − F_{t−1}(X)‖_F                                      distillation (from t = 2)
        after the first task: r² = mean over its classes of tr(Σ_c)/S           prototypes
        for every new class c: μ_c of its augmented images                      memory
    predict the largest of the C unrotated outputs                              classifier

``batch_size`` includes rotations: 256 is 64 images. On ImageNet-Subset the published code uses the mean of standard
deviations as r; here r is always the root of the mean variance.
"""

from __future__ import annotations

from typing import Any

from adagauss.backbones import BackboneConfig
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import MeanMemory
from adagauss.parts.representation import Representation, Rotations
from adagauss.parts.terms import CrossEntropy, NormDistillation, PrototypeReplay

RECIPE = Recipe(
    epochs=101,
    batch_size=256,
    optimizer="adam",
    learning_rate=1e-3,
    weight_decay=2e-4,
    milestones=(44 / 101, 89 / 101),  # the published code steps its schedule at the start of an epoch
    drop_last=False,
)

IMAGENET: dict[str, Any] = {
    "representation.terms.cross_entropy.temperature": 1.0,
    "representation.terms.prototypes.temperature": 1.0,
    "representation.first": Recipe(
        epochs=160, batch_size=256, milestones=(80 / 160, 120 / 160, 150 / 160), drop_last=False
    ).model_dump(),
    "representation.later.epochs": 100,
    "augmentation": Augmentation(crop_padding=0, resized_crop=True).model_dump(),
}


@register_method(
    "pass",
    title="PASS",
    family="prototype replay",
    stores="mean of each class, one radius",
    paper="Zhu et al., CVPR 2021",
    recipe="authors",
    datasets={"imagenet": IMAGENET, "tiny": {"augmentation.crop_padding": 0}},
)
def pass_() -> Method:
    """Prototype augmentation and self-supervision."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(brightness=63 / 255),
        representation=Representation(
            first=RECIPE,
            later=RECIPE,
            heads="keep",
            train_old_heads=True,
            keep_auxiliary=True,
            label_augmentation=Rotations(when="always"),
            terms={
                "cross_entropy": CrossEntropy(over="seen", temperature=0.1),
                "prototypes": PrototypeReplay(weight=10.0, temperature=0.1, noise=1.0),
                "distillation": NormDistillation(weight=10.0),
            },
        ),
        memory=MeanMemory(augmented=True),
    )
