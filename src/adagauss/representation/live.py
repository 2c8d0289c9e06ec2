"""A part during one task: its parameters are trained, and it returns the state for the next task."""

from __future__ import annotations

from torch import nn

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask


class Live(nn.Module):
    """Created by a specification when a task starts, and discarded when it ends.

    Its parameters are trained together with the network. Other modules and banks (the network, the memory) are passed
    as arguments, never stored as attributes, because torch would register them as submodules.
    """

    def begin_epoch(self) -> None:
        """Called before each epoch. Training may be resumed here, so data kept between batches must be dropped."""

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> State | None:
        """Called at the end of the task, after drift, memory and classifier; returns the state for the next task."""
        return None
