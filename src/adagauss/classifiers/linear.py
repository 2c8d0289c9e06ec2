"""Linear classifiers: trained on samples of the stored Gaussians, or the head that the network learned."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from adagauss.classifiers.base import Classifier, MemoryClassifier
from adagauss.core.config import SECOND_OUTPUT, Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import Groups, Scorer, State
from adagauss.core.task import CurrentTask, FitContext
from adagauss.core.train import Objective, Recipe, Sampler, batch_bounds, train
from adagauss.errors import UnsupportedError


class LinearScorer(Scorer):
    """xWᵀ + b, with x scaled to unit length if ``normalize``."""

    axes: ClassVar[Mapping[str, str]] = {"weight": "cs", "bias": "c"}
    contents: ClassVar[str] = "the weights of each class"

    def __init__(self, weight: Tensor, bias: Tensor, normalize: bool = False) -> None:
        super().__init__()
        self.normalize = normalize
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor
        self.bias: Tensor

    def forward(self, features: Tensor) -> Tensor:
        points = F.normalize(features, dim=1) if self.normalize else features
        return F.linear(points.to(self.weight), self.weight, self.bias)

    def remap_classes(self, groups: Groups) -> Self:
        if any(len(group) > 1 for group in groups):
            raise UnsupportedError(
                "classes cannot be joined: this method has trained one output for each, and two do not add up to one; "
                "forget them, and teach the images of all of them as one class"
            )
        kept = [column for (column,) in groups]
        fewer = copy.deepcopy(self)
        fewer.weight, fewer.bias = self.weight[kept], self.bias[kept]
        return fewer

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        raise UnsupportedError(
            "two learners of this method cannot be merged: the outputs of each were trained without the classes of the "
            "other; teach one of them the classes of the other"
        )


class LinearClassifier(Classifier):
    """A classifier whose scorer is linear."""

    def empty_state(self) -> LinearScorer:
        return LinearScorer(torch.zeros(0, 0), torch.zeros(0))


class SampledLinear(LinearClassifier, MemoryClassifier):
    """Linear(S, C) trained with cross-entropy on fresh draws from the Gaussians of uniformly drawn classes."""

    kind = "sampled_linear"
    cheap = False
    samples: PositiveInt = 10_000
    """Draws per epoch."""
    recipe: Recipe = Field(default_factory=lambda: Recipe(epochs=30, batch_size=128, milestones=(0.5,), clip_norm=1.0))

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.MEANS, Requirement.SPREAD})

    def of_memory(self, memory: ClassGaussians, now: FitContext) -> LinearScorer:
        with now.runtime.seeded(now.name, "linear initialisation"):
            head = nn.Linear(memory.size, len(memory)).to(now.runtime.device)
        batches = _SampledBatches(memory, self.samples, self.recipe)
        train(HeadObjective(head), batches, self.recipe, now.runtime, f"{now.name}: linear head")
        return LinearScorer(head.weight.detach(), head.bias.detach())


class LearnedHead(LinearClassifier):
    """The outputs that the network itself has learned, all tasks side by side."""

    kind = "learned_head"

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.KEPT_HEADS, Requirement.LINEAR_HEAD})

    @property
    def why_no_known_classes(self) -> str | None:
        return SECOND_OUTPUT

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> LinearScorer:
        return LinearScorer(*now.network.head.class_parameters())


class _SampledBatches:
    """Fresh draws for every epoch, drawn at once: one matrix product per class, with factors computed once."""

    def __init__(self, memory: ClassGaussians, samples: int, recipe: Recipe) -> None:
        self.classes = len(memory)
        self.samples = samples
        self.sampler = Sampler(memory)
        self.bounds = batch_bounds(samples, recipe.batch_size, recipe.drop_last)

    def __len__(self) -> int:
        return len(self.bounds)

    def epoch(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        targets = torch.randint(self.classes, (self.samples,), generator=generator)
        draws = self.sampler.draw(targets, generator)
        targets = targets.to(draws.device)
        for start, stop in self.bounds:
            yield draws[start:stop], targets[start:stop]


class HeadObjective(Objective):
    """Cross-entropy of a head on features."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": F.cross_entropy(self.head(features), targets)}
