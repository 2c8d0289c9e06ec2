"""Which weights of the extractor a task may change: all of them by default."""

from __future__ import annotations

from typing import ClassVar

from adagauss.core.config import Part
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.representation.live import Live


class LiveReparameterisation(Live):
    """A reparameterisation during one task. This base does nothing."""

    def settle(self, now: CurrentTask) -> None:
        """Called right after training, before anything is measured on the network."""


class Reparameterisation(Part):
    """Prepares the extractor for a task and settles it afterwards. This base lets every weight learn."""

    role: ClassVar[str] = "reparameterisation"

    def start(self, now: CurrentTask, before: State | None) -> LiveReparameterisation:
        """Prepare ``now.network``; ``before`` is the state returned after the last task."""
        return LiveReparameterisation()


class NoReparameterisation(Reparameterisation):
    """All weights learn in every task."""

    kind = "none"
