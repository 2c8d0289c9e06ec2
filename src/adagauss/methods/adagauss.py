"""AdaGauss (NeurIPS 2024): Gaussians that follow the extractor, and covariances that do not collapse.

Algorithm 1 of the paper, and the part that implements each line:

    for task t = 1 … T:
        train F_t on task t with L_CE + α·L_AC + λ·L_PKD               representation
        if t > 1:
            train ψ: F_{t−1}(x) ↦ F_t(x) on task t, with L_AC           drift (training)
            for every old class c: draw N samples of N(μ_c, Σ_c),
                map them through ψ, re-estimate μ_c and Σ_c             drift (transport)
        for every new class c: μ_c, Σ_c of the features of its images   memory
        predict argmax_c N(F_t(x); μ_c, Σ_c)                            classifier
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adagauss.classifiers import Bayes
from adagauss.drift import Adapter
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import GaussianMemory
from adagauss.representation import Representation
from adagauss.representation.terms import AntiCollapse, CrossEntropy, ProjectedDistillation

PAPER: dict[str, Any] = {
    # Losses are sums over batch and dimensions in the text's equations.
    "representation.terms.distillation.reduction": "sum",
    "drift.reduction": "sum",
    "drift.least_steps": 0,
}
"""The paper's text. The composition below already follows it, except for the reduction of the squared errors."""

REFERENCE: dict[str, Any] = {
    "representation.later.learning_rate": 0.01,  # the text: 0.1 in every task
    # The text: 45 and 90 of 100 epochs. The code counts epochs, however many there are: a short adapter keeps its rate.
    # In fractions, ten epochs end before ψ has learned to keep variance (docs/reproduction.md).
    "drift.recipe.milestones": (30, 60, 90),
    "representation.terms.distillation.reduction": "mean",  # the text: sums
    "drift.reduction": "mean",
    "drift.least_steps": 0,  # small tasks, such as those of CUB, get the few steps that their epochs give
    "representation.label_augmentation": {"kind": "rotations", "when": "first"},  # not in the text
    "augmentation.policy": "trivial",  # the text: crops and flips only
    "classifier.shrinkage": 3.0,  # the text: covariances are not altered
    "classifier.correlation": True,
    "classifier.normalize": True,
    "classifier.log_det": False,
    "memory.flips": True,  # not in the text
    "representation.first.clip_norm": 1.0,  # not in the text
    "representation.later.clip_norm": 1.0,
    "drift.recipe.clip_norm": 1.0,
    "representation.first.head_warmup": 0.01,  # not in the text
    "representation.later.head_warmup": 0.01,
    "representation.full_rate": "bottleneck_bias",  # pretrained runs: only the bottleneck's bias counts as new
}
"""The published code."""

PRACTICAL: dict[str, Any] = {**REFERENCE, "drift.least_steps": 500, "drift.fallback": True}
"""The published code with enough steps of the adapter, and the affine map in place of one that has failed."""


def without(preset: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """The preset without the settings of some parts, for a variant of AdaGauss that replaces them."""
    return {key: value for key, value in preset.items() if key.partition(".")[0] not in parts}


@register_method(
    "adagauss",
    title="AdaGauss",
    family="drift compensation",
    stores="mean and covariance of each class",
    paper="Rypesc et al., NeurIPS 2024, arXiv 2409.18265",
    presets={"paper": PAPER, "reference": REFERENCE, "practical": PRACTICAL},
    default_preset="reference",
)
def adagauss() -> Method:
    """The method of the paper."""
    return Method(
        representation=Representation(
            terms={
                "cross_entropy": CrossEntropy(over="current"),
                "anti_collapse": AntiCollapse(weight=1.0, beta=1.0),
                "distillation": ProjectedDistillation(weight=10.0, width=32),
            }
        ),
        memory=GaussianMemory(covariance="full"),
        drift=Adapter(network="mlp", width=32, anti_collapse=1.0, samples=10_000),
        classifier=Bayes(covariance="full", log_det=True),
    )
