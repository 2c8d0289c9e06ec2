"""The drift part: how the memory follows the extractor when it moves."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from adagauss.config import Part
from adagauss.gaussians import ClassGaussians
from adagauss.needs import Need
from adagauss.state import Learned
from adagauss.task import CurrentTask


class Moved(NamedTuple):
    """The old classes where the new extractor would see them, and what the drift must know in the next task."""

    memory: ClassGaussians
    state: Learned | None = None


class Drift(Part):
    """Moves remembered classes from the latent space of F_{t−1} to that of F_t.

    One that needs the current task alone defines `move`; one that learns over tasks defines `update` instead, and
    `empty_state`.
    """

    role: ClassVar[str] = "drift"

    @property
    def requires(self) -> frozenset[Need]:
        return frozenset({Need.MEANS})

    def update(self, memory: ClassGaussians, now: CurrentTask, before: Learned | None) -> Moved:
        """Called from the second task on; ``before`` is what it handed back after the last one."""
        return Moved(self.move(memory, now))

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        """The old classes as the new extractor would see them."""
        raise TypeError(f"{type(self).__name__} must define move or update")


class NoDrift(Drift):
    """The memory stays as it was written."""

    kind = "none"

    @property
    def requires(self) -> frozenset[Need]:
        return frozenset()

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        return memory
