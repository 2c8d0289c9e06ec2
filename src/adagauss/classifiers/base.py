"""The classifier part: how features become labels."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from adagauss.config import Part
from adagauss.gaussians import ClassGaussians
from adagauss.state import Learned
from adagauss.task import CurrentTask


class Scorer(Learned):
    """Maps features to scores. It holds only buffers and has no control flow that depends on the batch, so it can be
    exported."""

    def forward(self, features: Tensor) -> Tensor:
        """(B, C) scores whose softmax are class probabilities; the largest is the prediction."""
        raise TypeError(f"{type(self).__name__} must define forward")


class Classifier(Part):
    """Fits a scorer for all classes learned so far, in the order in which they were learned."""

    role: ClassVar[str] = "classifier"
    changes_network: ClassVar[bool] = False
    """Whether fitting changes the network, so that the classifier cannot be fitted again to the network of a finished
    run."""

    def empty_state(self) -> Scorer:
        """A scorer that knows no class yet, with this classifier's settings."""
        raise TypeError(f"{type(self).__name__} must define empty_state")

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: Learned | None) -> Scorer:
        """The scorer after a task, from the memory and the current task; data of old tasks is not available.

        ``before`` is the scorer after the last task. It must not be changed: other threads may still predict with it.
        """
        raise TypeError(f"{type(self).__name__} must define fit")
