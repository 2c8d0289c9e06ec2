"""AdaGauss+: AdaGauss with the drift and the classifier that were better in our own runs (docs/reproduction.md).

all lines of AdaGauss' Algorithm 1 except:
the adapter is the ridge regression z ↦ zP + b in closed form                       drift
old Gaussians move exactly, μP + b and PᵀΣP + R: nothing is sampled                 drift
    R, the covariance of the regression's residuals, is the variance that it loses  drift
Bayes with covariances shrunk half-way to their mean Σ̄ over classes, (Σ_c + Σ̄)/2    classifier
"""

from __future__ import annotations

from adagauss.classifiers import Bayes
from adagauss.drift import AffineMap
from adagauss.methods.adagauss import PAPER, REFERENCE, adagauss, without
from adagauss.methods.base import Method, register_method


@register_method(
    "adagauss+",
    title="AdaGauss+",
    family="drift compensation",
    stores="mean and covariance of each class",
    paper="this library; after Rypesc et al., NeurIPS 2024, and Friedman, 1989",
    presets={"paper": without(PAPER, "drift", "classifier"), "reference": without(REFERENCE, "drift", "classifier")},
    default_preset="reference",
)
def adagauss_plus() -> Method:
    """Exact affine transport and regularised discriminant analysis."""
    # Law of total covariance: Cov F_t = Cov E[F_t | F_{t−1}] + E Cov[F_t | F_{t−1}], and ψ gives only the first term.
    return adagauss().with_changes(drift=AffineMap(residual_covariance=1.0), classifier=Bayes(tied=0.5, log_det=True))
