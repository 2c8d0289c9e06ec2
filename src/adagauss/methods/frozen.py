"""Frozen features and nearest mean: the network of the first task, and one mean per class.

    task 1: train F with L_CE                        representation (later=None freezes it)
    every task: μ_c, the mean of the class's features  memory
    predict argmin_c ‖F(x) − μ_c‖                    classifier

A baseline: a method that learns new features should be better, one that keeps the old features should not be worse.
"""

from __future__ import annotations

from adagauss.classifiers import NearestMean
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import MeanMemory
from adagauss.representation import Representation
from adagauss.representation.terms import CrossEntropy


@register_method(
    "frozen",
    title="Frozen + nearest mean",
    family="reference",
    stores="mean of each class",
    paper="lower bound of frozen methods",
)
def frozen() -> Method:
    """The network of the first task with the nearest mean of all classes."""
    return Method(
        representation=Representation(later=None, terms={"cross_entropy": CrossEntropy()}),
        memory=MeanMemory(),
        drift=NoDrift(),
        classifier=NearestMean(),
    )
