"""What of the extractor a task may change: all of its weights unless a part says otherwise."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from adagauss.config import Part
from adagauss.task import CurrentTask


class Tuning(Part):
    """Prepares the extractor for a task and settles it afterwards. This base lets every weight learn."""

    role: ClassVar[str] = "tuning"

    def begin(self, now: CurrentTask) -> nn.Module | None:
        """Called before a task is trained; returns a module that is trained along with the network, if any."""
        return None

    def end(self, now: CurrentTask) -> None:
        """Called as soon as the task is trained, before anything is measured on the network."""


class FullTuning(Tuning):
    """All weights learn in every task."""

    kind = "full"
