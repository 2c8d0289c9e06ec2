"""SSRE (CVPR 2022): later tasks train 1×1 convolutions that are folded in; similarity to old classes weights losses.

first task: train as PASS does, with rotations as classes; fold batch norm into convolutions   reparameterisation
for task t = 2 … T:
    add a 1×1 convolution beside each 3×3 one, fix all else of F                               reparameterisation
    s(x) = max over old classes of cos(F_t(x), μ_c)
    train with mean of (1 − s)·CE over all classes (logits / 0.1)                              cross-entropy
        + 10 · CE of μ_c for random old classes c                                              prototypes
        + Σ over the batch of s·‖F_t(x) − F_{t−1}(x)‖₂                                         distillation
    fold the 1×1 convolutions into the 3×3 ones                                                reparameterisation
for every new class c: μ_c of its augmented images                                             memory
predict the largest of the C outputs                                                           classifier
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers import LearnedHead
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import MeanMemory
from adagauss.representation import ParallelConvolutions, Representation, Rotations
from adagauss.representation.terms.prototypes import PrototypeReplay
from adagauss.representation.terms.selection import SelectiveCrossEntropy, SelectiveDistillation

BASE = Recipe(
    epochs=101,
    batch_size=256,
    optimizer="adam",
    learning_rate=1e-3,
    weight_decay=2e-4,
    milestones=(44 / 101, 89 / 101),
)
"""The first task is trained like PASS: 64 images in 4 rotations."""

LATER = Recipe(
    epochs=60, batch_size=128, optimizer="adam", learning_rate=2e-4, weight_decay=5e-4, milestones=(45 / 60,)
)


@register_method(
    "ssre",
    title="SSRE",
    family="prototype replay",
    stores="mean of each class",
    paper="Zhu et al., CVPR 2022, arXiv 2203.06359",
)
def ssre() -> Method:
    """Self-sustaining representation expansion."""
    return Method(
        backbone=BackboneConfig(features=None, batch_norm="frozen"),
        augmentation=Augmentation(brightness=63 / 255),
        representation=Representation(
            first=BASE,
            later=LATER,
            heads="keep",
            train_old_heads=True,
            label_augmentation=Rotations(when="first"),
            reparameterisation=ParallelConvolutions(),
            terms={
                "cross_entropy": SelectiveCrossEntropy(over="seen", temperature=0.1),
                "prototypes": PrototypeReplay(weight=10.0, temperature=0.1, noise=0.0),
                "distillation": SelectiveDistillation(weight=1.0),
            },
        ),
        memory=MeanMemory(augmented=True),
        drift=NoDrift(),
        classifier=LearnedHead(),
    )
