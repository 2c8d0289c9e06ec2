"""A part at work on one task: what it trains are its parameters, what it must remember it hands back."""

from __future__ import annotations

from torch import nn

from adagauss.gaussians import ClassGaussians
from adagauss.state import Learned
from adagauss.task import CurrentTask


class Live(nn.Module):
    """Made by a specification when a task begins, and dead when it ends.

    Its parameters are trained along with the network. Modules and banks that are not its own (the network, the memory)
    reach it through arguments, never as attributes, which torch would take for its own.
    """

    def begin_epoch(self) -> None:
        """Called before each epoch. A training may be resumed here, so nothing kept between batches may live on."""

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> Learned | None:
        """Called last of all, when drift, memory and classifier are done: what the next task will need."""
        return None
