"""ACIL (NeurIPS 2022): a frozen extractor and a ridge regression over all data seen, solved from running sums.

    task 1: train F with L_CE, then freeze it                       representation
    every task, with X = ReLU(F(x)·B), B random and fixed:
        A ← A + XᵀX,  C ← [C, XᵀY]                                  classifier (running sums)
        W = (A + γI)⁻¹C, the ridge regression of all images seen    classifier
    predict argmax_c (XW)_c

The paper updates (A + γI)⁻¹ and W recursively, which gives the same W. Expansion 8192 is for CIFAR, 16384 for ImageNet.
"""

from __future__ import annotations

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.analytic import Analytic
from adagauss.core.train import Recipe
from adagauss.methods.base import Method, register_method
from adagauss.parts.drift import NoDrift
from adagauss.parts.memory import NoMemory
from adagauss.parts.representation import Representation
from adagauss.parts.terms import CrossEntropy


@register_method(
    "acil",
    title="ACIL",
    family="frozen extractor",
    stores="autocorrelation of all expanded features, and one vector of that size per class",
    paper="Zhuang et al., NeurIPS 2022, arXiv 2205.14922",
)
def acil() -> Method:
    """The method of the paper."""
    return Method(
        backbone=BackboneConfig(features=None),
        representation=base_training(),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=Analytic(expansion_size=8192, gamma=0.1),
    )


def base_training() -> Representation:
    """The first task, as for CIFAR-100 without strong augmentation; nothing is trained after it."""
    return Representation(
        first=Recipe(epochs=160, batch_size=128, milestones=(0.75, 0.875)),
        later=None,
        head_bias=False,
        terms={"cross_entropy": CrossEntropy()},
    )
