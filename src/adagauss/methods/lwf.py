"""LwF, learning without forgetting (ECCV 2016): the old network's outputs on the new images must not change.

    keep one head per task, the old ones fixed                                 representation (heads)
    for task t = 1 … T:
        train F_t and head t with CE over the new classes                      cross-entropy
            + λ · Σ_c −softmax(o_{t−1}/T)_c log softmax(o_t/T)_c, c old        distillation (from t = 2)
    predict the largest output of all heads                                    classifier

This is the variant with linear heads, the old ones fixed (FACIL); the preset ``pycil`` trains all heads.
"""

from __future__ import annotations

from typing import Any

from adagauss.backbones import BackboneConfig
from adagauss.classifiers import LearnedHead
from adagauss.core.train import Recipe
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import NoMemory
from adagauss.representation import Representation
from adagauss.representation.terms import CrossEntropy, LogitDistillation

PYCIL: dict[str, Any] = {
    "representation.train_old_heads": True,
    "representation.terms.distillation.weight": 3.0,
    "representation.first": Recipe(batch_size=128, milestones=(0.3, 0.6, 0.8)).model_dump(),
    "representation.later": Recipe(
        epochs=250, batch_size=128, weight_decay=2e-4, milestones=(0.24, 0.48, 0.72, 0.88)
    ).model_dump(),
}


@register_method(
    "lwf",
    title="LwF",
    family="regularisation",
    stores="the previous network's outputs for new images, while a task is trained",
    paper="Li & Hoiem, ECCV 2016, arXiv 1606.09282",
    presets={"facil": {}, "pycil": PYCIL},
    default_preset="facil",
)
def lwf() -> Method:
    """Distillation of old outputs at temperature 2."""
    recipe = Recipe(epochs=200, milestones=(0.3, 0.6, 0.9), clip_norm=1.0)
    return Method(
        backbone=BackboneConfig(features=None),
        representation=Representation(
            first=recipe,
            later=recipe,
            heads="keep",
            terms={
                "cross_entropy": CrossEntropy(over="current"),
                "distillation": LogitDistillation(weight=1.0, temperature=2.0),
            },
        ),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=LearnedHead(),
    )
