"""A linear head trained on samples drawn from the remembered Gaussians, and the head the network learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, PrivateAttr
from torch import Tensor, nn

from adagauss.classifiers.base import Classifier
from adagauss.config import State
from adagauss.gaussians import ClassGaussians
from adagauss.sampling import Sampler
from adagauss.task import CurrentTask
from adagauss.training import Recipe, batch_bounds, train


class LinearClassifier(Classifier):
    """Scores xWᵀ + b, however W and b came about."""

    _weight: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(0, 0))
    _bias: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(0))

    def scores(self, features: Tensor) -> Tensor:
        return F.linear(features.to(self._weight), self._weight, self._bias)

    def state_dict(self) -> State:
        return {"weight": self._weight, "bias": self._bias}

    def load_state_dict(self, state: State) -> None:
        self._weight, self._bias = state["weight"], state["bias"]


class SampledLinear(LinearClassifier):
    """Linear(S, C) trained with cross-entropy on fresh draws from the Gaussians, classes uniform at random."""

    kind = "sampled_linear"
    samples: PositiveInt = 10_000
    """Draws an epoch."""
    recipe: Recipe = Field(default_factory=lambda: Recipe(epochs=30, batch_size=128, milestones=(0.5,), clip_norm=1.0))

    @property
    def needs_covariances(self) -> bool:
        return True

    def fit(self, memory: ClassGaussians, now: CurrentTask) -> None:
        torch.manual_seed(now.runtime.seed_for(now.name, "linear initialisation"))
        head = nn.Linear(memory.size, len(memory)).to(now.runtime.device)
        batches = _SampledBatches(memory, self.samples, self.recipe)
        train(HeadObjective(head), batches, self.recipe, now.runtime, f"{now.name}: linear head")
        self._weight, self._bias = head.weight.detach(), head.bias.detach()


class LearnedHead(LinearClassifier):
    """The outputs the network itself has learned, of every task side by side."""

    kind = "learned_head"

    def fit(self, memory: ClassGaussians, now: CurrentTask) -> None:
        self._weight, self._bias = now.network.head.class_parameters()


class _SampledBatches:
    """Fresh draws for every epoch, made at once: a matrix product a class, from factors computed once."""

    def __init__(self, memory: ClassGaussians, samples: int, recipe: Recipe) -> None:
        self.classes = len(memory)
        self.samples = samples
        self.sampler = Sampler(memory)
        self.bounds = batch_bounds(samples, recipe.batch_size, recipe.drop_last)

    def __len__(self) -> int:
        return len(self.bounds)

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        targets = torch.randint(self.classes, (self.samples,), generator=generator)
        draws = self.sampler.draw(targets, generator)
        targets = targets.to(draws.device)
        for start, stop in self.bounds:
            yield draws[start:stop], targets[start:stop]


class HeadObjective:
    """Cross-entropy of a head on features."""

    def __init__(self, head: nn.Module) -> None:
        self.module = head

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self.module.parameters()), "lr": learning_rate}]

    def begin_epoch(self, epoch: int, generator: torch.Generator) -> None:
        """Nothing here is random beyond the batches."""

    def losses(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        features, targets = batch
        return {"cross_entropy": F.cross_entropy(self.module(features), targets)}
