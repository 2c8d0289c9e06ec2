"""Joint training: the upper bound. All classes at once, which no incremental learner may have."""

from __future__ import annotations

from adagauss.classifiers import LearnedHead
from adagauss.drift import NoDrift
from adagauss.memory import NoMemory
from adagauss.methods.base import Method, register_method
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
    """Ordinary supervised training; the benchmark runner starts it anew on all classes seen so far."""
    return Method(
        representation=Representation(terms={"cross_entropy": CrossEntropy(over="current")}, heads="keep"),
        memory=NoMemory(),
        drift=NoDrift(),
        classifier=LearnedHead(),
    )
