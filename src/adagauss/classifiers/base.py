"""The classifier part: how a feature becomes a label."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from adagauss.config import Part
from adagauss.gaussians import ClassGaussians
from adagauss.state import Learned
from adagauss.task import CurrentTask


class Scorer(Learned):
    """Features to scores. It holds buffers alone and does the same whatever the batch, so it can be exported."""

    def forward(self, features: Tensor) -> Tensor:
        """(B, C) scores whose softmax are class probabilities; the largest is the prediction."""
        raise TypeError(f"{type(self).__name__} must define forward")


class Classifier(Part):
    """Makes a scorer of every class learned so far, in the order the classes were learned."""

    role: ClassVar[str] = "classifier"
    changes_network: ClassVar[bool] = False
    """Whether fitting writes into the network, so that it cannot be fitted anew to a network that is finished."""

    def empty_state(self) -> Scorer:
        """A scorer that knows no class yet, with this classifier's settings."""
        raise TypeError(f"{type(self).__name__} must define empty_state")

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: Learned | None) -> Scorer:
        """The scorer after a task. The current task may be used; old ones are not there to be used.

        ``before`` is the scorer after the last task. It stays as it is: others may still be predicting with it.
        """
        raise TypeError(f"{type(self).__name__} must define fit")
