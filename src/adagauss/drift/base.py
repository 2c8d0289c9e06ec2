"""The drift part: how the memory follows the extractor."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from adagauss.core.config import Part, Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask


class Moved(NamedTuple):
    """The old classes in the latent space of the new extractor, and the state that the drift needs in the next task."""

    memory: ClassGaussians
    state: State | None = None
    warning: str | None = None
    """A sentence on what went wrong and how to mend it."""


class Drift(Part):
    """Moves the stored classes from the latent space of F_{t−1} to that of F_t.

    A drift that needs only the current task defines `move`; one that learns over tasks defines `update` and
    `empty_state` instead.
    """

    role: ClassVar[str] = "drift"

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.MEANS})

    def update(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Moved:
        """Called from the second task on; ``before`` is the state it returned after the last task."""
        return Moved(self.move(memory, now))

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        """The old classes in the latent space of the new extractor."""
        raise TypeError(f"{type(self).__name__} must define move or update")


class NoDrift(Drift):
    """The memory is not changed."""

    kind = "none"

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset()

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        return memory
