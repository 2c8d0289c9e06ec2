"""One training step as the loss terms see it, and the interface of a loss term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from adagauss.config import Part
from adagauss.gaussians import ClassGaussians
from adagauss.task import CurrentTask


@dataclass
class Step:
    """A batch on its way through the networks; what several terms need is computed once and shared."""

    images: Tensor
    targets: Tensor
    """Positions among the current task's classes, then among its auxiliary outputs."""
    now: CurrentTask
    memory: ClassGaussians
    generator: torch.Generator
    extract: Callable[[Tensor], Tensor]
    detach: bool = False
    originals: int | None = None
    """Images the batch had before it was expanded; None: it was not."""

    @cached_property
    def features(self) -> Tensor:
        """F_t(x); detached while only the head warms up."""
        features = self.extract(self.images)
        return features.detach() if self.detach else features

    @cached_property
    def previous_features(self) -> Tensor:
        """F_{t−1}(x), in evaluation mode and without gradient."""
        assert self.now.previous is not None, "the first task has no previous network"
        with torch.no_grad():
            features: Tensor = self.now.previous.extractor(self.images)
        return features


class Term(Part):
    """A loss term. It may bring a module that is trained along with the network and thrown away after the task."""

    role: ClassVar[str] = "term"
    weight: NonNegativeFloat = 1.0

    def annotate(self, now: CurrentTask) -> None:
        """Leave in the task's notes what other parts need to know of earlier tasks. Called before all else."""

    def begin(self, now: CurrentTask, memory: ClassGaussians) -> nn.Module | None:
        """Called before a task is trained; returns the helper module to train along, if any."""
        return None

    def begin_epoch(self) -> None:
        """Called before each epoch. A training may be resumed here, so nothing kept between batches may live on."""

    def loss(self, step: Step) -> Tensor | None:
        """The term, not yet weighted; None where it does not apply (say, in the first task)."""
        raise TypeError(f"{type(self).__name__} must define loss")

    def end(self, now: CurrentTask, memory: ClassGaussians) -> None:
        """Called after the task is trained, e.g. to measure what the next one will need."""

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> None:
        """Called last of all, when drift, memory and classifier are done: the network is as the next task finds it."""
