"""AdaGauss with a linear classifier in place of the Bayes rule.

all lines of AdaGauss' Algorithm 1 except the last                               see adagauss
train Linear(S, C) with cross-entropy on draws of N(μ_c, Σ_c), classes balanced  classifier
predict its largest output                                                       classifier
"""

from __future__ import annotations

from adagauss.classifiers import SampledLinear
from adagauss.methods.adagauss import PAPER, REFERENCE, adagauss, without
from adagauss.methods.base import Method, register_method


@register_method(
    "adagauss-linear",
    title="AdaGauss, linear classifier",
    family="drift compensation",
    stores="mean and covariance of each class",
    paper="an ablation of Rypesc et al., NeurIPS 2024, arXiv 2409.18265",
    presets={
        "paper": {**without(PAPER, "classifier"), "classifier.recipe.clip_norm": None},
        "reference": without(REFERENCE, "classifier"),
    },
    default_preset="reference",
)
def adagauss_linear() -> Method:
    """AdaGauss with a linear head trained on draws from its Gaussians."""
    return adagauss().with_changes(classifier=SampledLinear())
