"""Still and moving together: AdaGauss+ and, beside it, patches that never move; one weighs the other.

    once: a dictionary of whitened patches of photographs that belong to no task   backbone (companion)
    every task, with x the features of the network and z those of the dictionary:
        leave out a twentieth of the images; AdaGauss+ learns from the others      evidence, representation, drift
        sums of z for a ridge regression of everything seen                        classifier (still)
        w, T and the temperatures of p by the likelihood of what was left out      classifier (evidence of all tasks)
        what was left out is added to the Gaussians and to the sums                memory, classifier
    predict argmax_c ((1 − w)·log p(c | x) + w·log p(c | z)) / T                   classifier

What is left out is of current classes only, on which the network has just been trained: see docs/exact.md for what that
means for w.
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers import Bayes
from adagauss.classifiers.exact import ExactRidge
from adagauss.classifiers.together import Together
from adagauss.core.calibration import Holdout
from adagauss.methods.adagauss import PAPER, REFERENCE, without
from adagauss.methods.adagauss_plus import adagauss_plus
from adagauss.methods.base import Method, register_method
from adagauss.patches import PatchSettings


@register_method(
    "adagauss-still",
    title="AdaGauss+ and still patches",
    family="drift compensation",
    stores="mean and covariance of each class; a dictionary of patches and the sums over its features",
    paper="this library; after Rypesc et al., NeurIPS 2024, and Coates, Lee and Ng, 2011",
    presets={"paper": without(PAPER, "drift", "classifier"), "reference": without(REFERENCE, "drift", "classifier")},
    default_preset="reference",
)
def adagauss_still() -> Method:
    """The sum of what features that move and features that stand still say."""
    patches = BackboneConfig(name="patches", features=None, mirror=True, options=PatchSettings(filters=200))
    return adagauss_plus().with_changes(
        backbone=BackboneConfig(companion=patches),
        classifier=Together(moving=Bayes(tied=0.5, log_det=True), still=ExactRidge()),
        evidence=Holdout(of_training=0.05),
    )
