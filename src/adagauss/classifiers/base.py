"""The classifier part: how a feature becomes a label."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from adagauss.config import Part
from adagauss.gaussians import ClassGaussians
from adagauss.task import CurrentTask


class Classifier(Part):
    """Scores features against every remembered class, in the order the classes were learned."""

    role: ClassVar[str] = "classifier"
    changes_network: ClassVar[bool] = False
    """Whether fitting writes into the network, so that it cannot be fitted anew to a network that is finished."""

    @property
    def needs_covariances(self) -> bool:
        """Whether the memory must keep covariances for it."""
        return False

    def fit(self, memory: ClassGaussians, now: CurrentTask) -> None:
        """Prepare from the memory after a task; the current task may be used, old ones are not there to be used."""
        raise TypeError(f"{type(self).__name__} must define fit")

    def scores(self, features: Tensor) -> Tensor:
        """(B, C) scores whose softmax are class probabilities; the largest is the prediction."""
        raise TypeError(f"{type(self).__name__} must define scores")
