"""EWC, elastic weight consolidation (PNAS 2017): weights that matter for old tasks are kept near their old values.

    keep one head per task, the old ones fixed                                 representation (heads)
    for task t = 1 … T:
        train F_t and head t with CE over the new classes                      cross-entropy
            + (λ/2) Σ_i F_i (θ_i − θ*_i)², θ* = θ_{t−1}                        ewc (from t = 2)
        F ← ½F + ½·diagonal Fisher information of task t                       ewc (after the task)
    predict the largest output of all heads                                    classifier

λ depends on how F is measured. The composition squares the gradient of every image; the presets ``facil`` and ``pycil``
square the gradients of batches of 128, which are much smaller, with λ = 5000 and 1000. Only the extractor is penalised:
PyCIL also penalises the old outputs, which are fixed here.
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
from adagauss.representation.terms import CrossEntropy
from adagauss.representation.terms.ewc import ElasticWeights

FACIL: dict[str, Any] = {
    "representation.terms.ewc.weight": 5000.0,
    "representation.terms.ewc.gradients": "batch",
    "representation.terms.ewc.labels": "predicted",
    "representation.terms.ewc.over": "seen",
}

PYCIL: dict[str, Any] = {
    "representation.terms.ewc.weight": 1000.0,
    "representation.terms.ewc.gradients": "batch",
    "representation.terms.ewc.labels": "true",
    "representation.terms.ewc.over": "seen",
    "representation.terms.ewc.old_share": None,
    "representation.terms.ewc.limit": 1e-4,
    "representation.first": Recipe(batch_size=128, milestones=(0.3, 0.6, 0.85)).model_dump(),
    "representation.later": Recipe(
        epochs=180, batch_size=128, weight_decay=2e-4, milestones=(70 / 180, 120 / 180, 150 / 180)
    ).model_dump(),
}


@register_method(
    "ewc",
    title="EWC",
    family="regularisation",
    stores="the importance of each weight of the extractor",
    paper="Kirkpatrick et al., PNAS 2017, arXiv 1612.00796",
    presets={"facil": FACIL, "pycil": PYCIL},
)
def ewc() -> Method:
    """A quadratic penalty weighted by the diagonal Fisher information."""
    recipe = Recipe(epochs=200, milestones=(0.3, 0.6, 0.9), clip_norm=1.0)
    return Method(
        backbone=BackboneConfig(features=None),
        representation=Representation(
            first=recipe,
            later=recipe,
            heads="keep",
            terms={"cross_entropy": CrossEntropy(over="current"), "ewc": ElasticWeights(weight=40.0)},
        ),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=LearnedHead(),
    )
