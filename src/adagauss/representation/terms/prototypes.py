"""Replay of old classes as points in the latent space: the stored mean of a class, with noise around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PrivateAttr
from torch import Tensor

from adagauss.config import State
from adagauss.gaussians import ClassGaussians
from adagauss.representation.step import Step, Term
from adagauss.task import CurrentTask


class PrototypeReplay(Term):
    """Cross-entropy of old means μ_c + ρ·r·ε, ε ~ N(0, I), under all outputs (PASS, ρ = 1; SSRE, ρ = 0).

    As many old classes as the batch has images are drawn uniformly. The radius r is measured once, on the
    augmented images of the first task (see `radius`).
    """

    kind = "prototypes"
    weight: NonNegativeFloat = 10.0
    temperature: PositiveFloat = 0.1
    noise: NonNegativeFloat = 1.0
    """ρ, the noise in units of the radius; 0 replays the means as they are."""
    _radius: Tensor | None = PrivateAttr(None)

    def loss(self, step: Step) -> Tensor | None:
        if not len(step.memory):
            return None
        drawn = draw_classes(step)
        points = step.memory.means[drawn].float()
        if self.noise and self._radius is not None:
            points = around(points, self.noise * self._radius.float(), step.generator)
        logits = step.now.network.head.seen(points, auxiliary=True)
        return F.cross_entropy(logits / self.temperature, drawn)

    def end(self, now: CurrentTask, memory: ClassGaussians) -> None:
        if self.noise and self._radius is None:
            self._radius = radius(now.features(0), now.targets)

    def state_dict(self) -> State:
        return {} if self._radius is None else {"radius": self._radius}

    def load_state_dict(self, state: State) -> None:
        self._radius = state.get("radius")


def radius(features: Tensor, targets: Tensor) -> Tensor:
    """r with r² = mean over classes of tr(Σ_c)/S: one standard deviation for all classes and directions."""
    variances = ClassGaussians.from_features(features, targets.tolist(), "diagonal").packed
    return variances.mean().sqrt()


def around(means: Tensor, deviation: Tensor, generator: torch.Generator) -> Tensor:
    """μ + deviation·ε, ε ~ N(0, I)."""
    return means + deviation * torch.randn(means.shape, generator=generator).to(means)


def draw_classes(step: Step) -> Tensor:
    """Old classes, uniform at random, one for each image the batch had before it was expanded.

    Remembered classes stand in the order of the head's outputs, so the positions are labels as well.
    """
    number = len(step.images) if step.originals is None else step.originals
    drawn = torch.randint(len(step.memory), (number,), generator=step.generator)
    return drawn.to(step.memory.means.device)
