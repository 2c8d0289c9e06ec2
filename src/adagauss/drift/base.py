"""The drift part: how the memory follows the extractor when it moves."""

from __future__ import annotations

from typing import ClassVar

from adagauss.config import Part
from adagauss.gaussians import ClassGaussians
from adagauss.task import CurrentTask


class Drift(Part):
    """Moves remembered classes from the latent space of F_{t−1} to that of F_t."""

    role: ClassVar[str] = "drift"

    def update(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        """The old classes as the new extractor would see them. Called from the second task on."""
        raise TypeError(f"{type(self).__name__} must define update")


class NoDrift(Drift):
    """The memory stays as it was written."""

    kind = "none"

    def update(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        return memory
