"""Joint training: the upper bound. It trains on all seen classes at once, which an incremental learner may not do."""

from __future__ import annotations

from adagauss.classifiers import LearnedHead
from adagauss.drift import NoDrift
from adagauss.methods.base import Method, register_method
from adagauss.parts.memory import NoMemory
from adagauss.representation import Representation
from adagauss.representation.terms import CrossEntropy


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
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=LearnedHead(),
    )
