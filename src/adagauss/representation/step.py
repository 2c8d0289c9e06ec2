"""The data of one training step for the loss terms, and the interface of a loss term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from adagauss.core.config import Part
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.distributed.processes import Sharding
from adagauss.representation.live import Live


@dataclass
class Step:
    """A batch and its features; what several terms need is computed once and shared.

    Several processes hold their share of the images each. Targets and features are those of the whole batch in all of
    them, so a term is a function of the whole batch, whatever it does with it.
    """

    images: Tensor
    """Those of this process."""
    targets: Tensor
    """Positions among the current task's classes, then among its auxiliary outputs."""
    now: CurrentTask
    memory: ClassGaussians
    generator: torch.Generator
    extract: Callable[[Tensor], Tensor]
    detach: bool = False
    originals: int | None = None
    """Number of images before label augmentation; None without label augmentation."""
    division: Sharding | None = None
    """Which process holds each image; None if this one holds all."""

    @cached_property
    def features(self) -> Tensor:
        """F_t(x); detached during the warm-up of the head."""
        features = self._whole(self.extract(self.images))
        return features.detach() if self.detach else features

    @cached_property
    def previous_features(self) -> Tensor:
        """F_{t−1}(x), in evaluation mode and without gradient."""
        assert self.now.previous is not None, "the first task has no previous network"
        with torch.no_grad():
            return self._whole(self.now.previous.extractor(self.images))

    def only(self, chosen: Tensor) -> Step:
        """Some images of the batch, by position, as a batch of their own."""
        images, division = self.images, self.division
        if division is None:
            images = images[chosen]
        else:
            images, division = division.chosen(images, chosen.cpu())
        return replace(self, images=images, targets=self.targets[chosen], division=division)

    def _whole(self, own: Tensor) -> Tensor:
        return own if self.division is None else self.division.gathered(own)


class LiveTerm(Live):
    """A loss term during one task."""

    def forward(self, step: Step) -> Tensor | None:
        """The unweighted loss; None if the term does not apply (e.g. in the first task)."""
        raise TypeError(f"{type(self).__name__} must define forward")

    @staticmethod
    def without_effect() -> LiveTerm:
        """A term that does not apply in this task, e.g. distillation in the first one."""
        return _NoTerm()


class _NoTerm(LiveTerm):
    def forward(self, step: Step) -> Tensor | None:
        return None


class Term(Part):
    """A loss term.

    A term that is a function of the step defines `loss`. A term that trains a helper network, prepares something per
    task or keeps a state for the next task defines `start` instead, which returns its own `LiveTerm`.
    """

    role: ClassVar[str] = "term"
    weight: NonNegativeFloat = 1.0

    def start(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> LiveTerm:
        """The term for this task; ``before`` is the state it returned after the last task."""
        return _PureTerm(self)

    def loss(self, step: Step) -> Tensor | None:
        """The unweighted loss; None if the term does not apply."""
        raise TypeError(f"{type(self).__name__} must define loss or start")

    def shares(self, before: State) -> dict[str, Tensor]:
        """Tensors of its state that other parts may read while a task is learned."""
        return {}


class _PureTerm(LiveTerm):
    """A term that is a function of the step."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self.term = term

    def forward(self, step: Step) -> Tensor | None:
        return self.term.loss(step)
