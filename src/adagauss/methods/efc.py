"""EFC (ICLR 2024), elastic feature consolidation: features may move in directions that do not affect the old outputs.

    for task t = 1 … T:
        t = 1: cross-entropy over classes and their rotations                           representation
        t > 1: L_CE(new classes) + Δᵀ(λE + ηI)Δ + L_PR-ACE, batch norm frozen           representation
               (Δ: drift of the features; L_PR-ACE: old prototypes and new images,
               over all outputs)
        t > 1: μ_c ← μ_c + EFM-weighted mean drift, for every old class c               drift
        for every new class c: μ_c, Σ_c of the features of its augmented images         memory
        predict the largest of all outputs                                              classifier
        E = mean of Wᵀ(diag p − ppᵀ)W over task t                                       representation (finish)

Settings are those for CIFAR-100, where the published code pads whole images before the resized crop (here: a shifted
window is cropped). On ImageNet-Subset later tasks train the backbone at 1e-5 in the published code, and at 1e-4 like
the outputs here.
"""

from __future__ import annotations

from typing import Any

from adagauss.backbones import BackboneConfig
from adagauss.classifiers import LearnedHead
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.drift.efc import EFC
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import GaussianMemory
from adagauss.representation import Representation, Rotations
from adagauss.representation.terms import CrossEntropy
from adagauss.representation.terms.efm import FeatureMatrix
from adagauss.representation.terms.pr_ace import PrototypeRehearsal

DATASETS: dict[str, dict[str, Any]] = {
    "tiny": {"augmentation.resized_crop": False},
    "imagenet": {
        "representation.first": Recipe(epochs=160, milestones=(80 / 160, 120 / 160, 150 / 160)).model_dump(),
    },
}


@register_method(
    "efc",
    title="EFC",
    family="drift compensation",
    stores="mean and covariance of each class, outputs of each task, one feature matrix",
    paper="Magistri et al., ICLR 2024, arXiv 2402.03917",
    datasets=DATASETS,
)
def efc() -> Method:
    """The method of the paper."""
    return Method(
        backbone=BackboneConfig(features=None, batch_norm="frozen"),
        augmentation=Augmentation(crop_padding=4, resized_crop=True, flip=True),
        representation=Representation(
            # 64 images and the three rotations of each.
            first=Recipe(
                epochs=100,
                batch_size=256,
                optimizer="adam",
                learning_rate=1e-3,
                weight_decay=2e-4,
                milestones=(0.45, 0.9),
            ),
            later=Recipe(
                epochs=100,
                batch_size=64,
                optimizer="adam",
                learning_rate=1e-4,
                weight_decay=2e-4,
                schedule="constant",
            ),
            heads="keep",
            train_old_heads=True,
            head_bias=False,
            label_augmentation=Rotations(when="first"),
            terms={
                "cross_entropy": CrossEntropy(over="current"),
                "feature_matrix": FeatureMatrix(importance=10.0, damping=0.1),
                "pr_ace": PrototypeRehearsal(),
            },
        ),
        memory=GaussianMemory(covariance="full", augmented=True),
        drift=EFC(sigma=0.2),
        classifier=LearnedHead(),
    )
