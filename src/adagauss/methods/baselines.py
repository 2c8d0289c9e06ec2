"""Baselines: fine-tuning, frozen features with nearest means, and joint training.

``finetune``, the lower bound: cross-entropy over all seen classes, nothing against forgetting.

``frozen``: the network of the first task, and one mean per class
    task 1: train F with L_CE                            representation (later=None freezes it)
    every task: μ_c, the mean of the class's features    memory
    predict argmin_c ‖F(x) − μ_c‖                        classifier
A method that learns new features should be better; one that keeps the old features should not be worse.

``joint``, the upper bound: it trains on all seen classes at once, which an incremental learner may not do.
"""

from __future__ import annotations

from adagauss.methods.base import Method, register_method
from adagauss.parts.classifiers import NearestMean
from adagauss.parts.memory import MeanMemory
from adagauss.parts.representation import Representation
from adagauss.parts.terms import CrossEntropy


@register_method(
    "finetune",
    title="Fine-tuning",
    family="reference",
    stores="nothing",
    paper="lower bound",
)
def finetune() -> Method:
    """Train on each task in turn and predict with the trained head."""
    return Method(
        representation=Representation(
            heads="keep", train_old_heads=True, terms={"cross_entropy": CrossEntropy(over="seen")}
        ),
    )


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
        classifier=NearestMean(),
    )


@register_method(
    "joint",
    title="Joint training",
    family="upper bound",
    stores="all images",
    paper="upper bound",
    joint=True,
)
def joint() -> Method:
    """Ordinary supervised training; the runner trains it from scratch on all classes seen so far."""
    return Method(
        representation=Representation(terms={"cross_entropy": CrossEntropy(over="current")}, heads="keep"),
    )
