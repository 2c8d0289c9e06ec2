"""Replay of old classes as points in the latent space: the stored mean of a class, plus noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from adagauss.core.config import SECOND_OUTPUT, Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import SharedState, State, as_state
from adagauss.core.task import CurrentTask
from adagauss.representation.step import LiveTerm, Step, Term


class PrototypeReplay(Term):
    """Cross-entropy of old means μ_c + ρ·r·ε, ε ~ N(0, I), under all outputs (PASS, ρ = 1; SSRE, ρ = 0).

    One old class per image of the batch is drawn uniformly. The radius r is measured once, on the augmented images of
    the first task (see `radius`).
    """

    kind = "prototypes"
    weight: NonNegativeFloat = 10.0
    temperature: PositiveFloat = 0.1
    noise: NonNegativeFloat = 1.0
    """ρ, the noise in units of the radius; 0 replays the means without noise."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.MEANS, Requirement.KEPT_HEADS})

    @property
    def why_no_known_classes(self) -> str | None:
        return SECOND_OUTPUT

    def empty_state(self) -> Radius:
        return Radius()

    def start(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> LiveTerm:
        return _Replay(self, as_state(before, Radius))


class Radius(SharedState):
    """r, one number."""

    axes: ClassVar[Mapping[str, str]] = {"radius": ""}
    contents: ClassVar[str] = "the mean deviation of the features of the first task, one number"

    def check(self) -> None:
        """Raise a `DataError` if this cannot be a radius."""
        super().check()
        self.require(self.radius >= 0, "a radius is negative")

    def __init__(self, radius: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("radius", torch.zeros((), dtype=torch.float64) if radius is None else radius)
        self.radius: Tensor


class _Replay(LiveTerm):
    """Old means plus noise; none in the first task, at the end of which the radius is measured."""

    def __init__(self, part: PrototypeReplay, before: Radius | None) -> None:
        super().__init__()
        self.part = part
        # In a tuple, so that the old state is not part of this task's training.
        self._before = (before,)

    def forward(self, step: Step) -> Tensor | None:
        if not len(step.memory):
            return None
        drawn = draw_classes(step)
        points = step.memory.means[drawn].float()
        known = self._before[0]
        if self.part.noise and known is not None:
            points = around(points, self.part.noise * known.radius.float(), step.generator)
        logits = step.now.network.head.seen(points, auxiliary=True)
        return F.cross_entropy(logits / self.part.temperature, drawn)

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> Radius | None:
        known = self._before[0]
        if known is None and self.part.noise:
            return Radius(radius(now.features(0), now.targets))
        return known


def radius(features: Tensor, targets: Tensor) -> Tensor:
    """r with r² = mean over classes of tr(Σ_c)/S: one standard deviation for all classes and directions."""
    variances = ClassGaussians.from_features(features, targets.tolist(), "diagonal").packed
    return variances.mean().sqrt()


def around(means: Tensor, deviation: Tensor, generator: torch.Generator) -> Tensor:
    """μ + deviation·ε, ε ~ N(0, I)."""
    return means + deviation * torch.randn(means.shape, generator=generator).to(means)


def draw_classes(step: Step) -> Tensor:
    """Old classes, uniformly at random, one per image of the batch before label augmentation.

    Stored classes have the order of the head's outputs, so their positions are also labels.
    """
    number = len(step.images) if step.originals is None else step.originals
    drawn = torch.randint(len(step.memory), (number,), generator=step.generator)
    return drawn.to(step.memory.means.device)
