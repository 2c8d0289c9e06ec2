"""Plain fine-tuning: the lower bound. Cross-entropy over all seen classes, nothing against forgetting."""

from __future__ import annotations

from adagauss.classifiers import LearnedHead
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import NoMemory
from adagauss.representation import Representation
from adagauss.representation.terms import CrossEntropy


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
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=LearnedHead(),
    )
