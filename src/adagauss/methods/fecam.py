"""FeCAM (NeurIPS 2023): a frozen extractor and a Mahalanobis distance with the covariance of each class.

    task 1: train F with L_CE, then freeze it                                     representation
    every task, for every new class c:
        μ_c of F(x); Σ_c of F(x)^λ, shrunk: Σ + α₁V₁I + α₂V₂(1 − I)               memory
    predict argmin_c (x̃ − μ̃_c)ᵀ Σ̃_c⁻¹ (x̃ − μ̃_c), where                            classifier
        x̃ and μ̃_c are F(x)^λ and μ_c^λ at unit length (unit length first changes nothing: powers keep directions),
        Σ̃_c is Σ_c, shrunk once more, as a correlation matrix

V₁ and V₂ are the mean diagonal and off-diagonal entries. λ = ½ takes roots, so features must not be negative: the
extractor has no bottleneck. With about 30 images per class, the authors advise off_diagonal_shrinkage = 0.
The published code predicts the first task with its trained cosine outputs; here the rule above is used.
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.methods.base import Method, register_method
from adagauss.parts.classifiers import Bayes
from adagauss.parts.memory import GaussianMemory
from adagauss.parts.representation import Representation
from adagauss.parts.terms import CrossEntropy


@register_method(
    "fecam",
    title="FeCAM",
    family="frozen extractor",
    stores="mean and covariance of each class",
    paper="Goswami et al., NeurIPS 2023, arXiv 2309.14062",
    recipe="authors",
)
def fecam() -> Method:
    """The method of the paper, shrinking twice as the published code does."""
    return Method(
        backbone=BackboneConfig(features=None),
        augmentation=Augmentation(brightness=63 / 255, policy="autoaugment"),
        representation=Representation(
            first=Recipe(epochs=200, batch_size=128, schedule="cosine", drop_last=False),
            later=None,
            head="cosine",
            terms={"cross_entropy": CrossEntropy()},
        ),
        memory=GaussianMemory(covariance="full", tukey=0.5, shrinkage=1.0, off_diagonal_shrinkage=1.0),
        classifier=Bayes(
            tukey=0.5,
            normalize=True,
            shrinkage=1.0,
            off_diagonal_shrinkage=1.0,
            correlation=True,
            log_det=False,
        ),
    )
