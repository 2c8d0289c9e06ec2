"""AdaGauss with a linear classifier in place of the Bayes rule.

all lines of AdaGauss' Algorithm 1 but the last                                  see adagauss
train Linear(S, C) with cross-entropy on draws of N(μ_c, Σ_c), all classes alike  classifier
predict its largest output                                                       classifier
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adagauss.classifiers import SampledLinear
from adagauss.methods.adagauss import PAPER, REFERENCE, adagauss
from adagauss.methods.base import Method, register_method


def _without_bayes(preset: Mapping[str, Any]) -> dict[str, Any]:
    """A preset of AdaGauss without the settings of the rule that is not there."""
    return {key: value for key, value in preset.items() if not key.startswith("classifier.")}


@register_method(
    "adagauss-linear",
    title="AdaGauss, linear classifier",
    family="drift compensation",
    stores="mean and covariance of each class",
    paper="an ablation of Rypesc et al., NeurIPS 2024, arXiv 2409.18265",
    presets={
        "paper": {**_without_bayes(PAPER), "classifier.recipe.clip_norm": None},
        "reference": _without_bayes(REFERENCE),
    },
    default_preset="reference",
)
def adagauss_linear() -> Method:
    """AdaGauss with a linear head trained on draws of its Gaussians."""
    method = adagauss()
    method.classifier = SampledLinear()
    return method
