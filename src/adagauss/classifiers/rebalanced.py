"""EFC++'s classifier: the network's outputs, re-balanced with draws from the old classes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from adagauss.classifiers.linear import HeadObjective, LinearClassifier, LinearScorer
from adagauss.core.config import SECOND_OUTPUT, Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe, Sampler, batch_bounds, train


class Rebalanced(LinearClassifier):
    """All outputs, trained on features of the current images and, per old class, as many draws as it had images.

    The classifier comes after drift and memory, so the draws come from Gaussians that have followed the extractor. The
    trained outputs are written back into the network: the next task starts and distils from them, and what a term
    measures at the end of the task (EFC's feature matrix) is measured with them. The first task needs no balancing.
    """

    kind = "rebalanced"
    cheap = False
    changes_network = True
    recipe: Recipe = Field(
        default_factory=lambda: Recipe(
            epochs=50, batch_size=256, learning_rate=1e-3, schedule="constant", drop_last=False
        )
    )
    views: PositiveInt = 4
    """Augmented copies of the task; each epoch uses one of them, chosen at random."""
    jitter: NonNegativeFloat = 1e-5
    """ε of N(μ_c, Σ_c + εI)."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.SPREAD, Requirement.KEPT_HEADS, Requirement.LINEAR_HEAD})

    @property
    def why_no_known_classes(self) -> str | None:
        return SECOND_OUTPUT

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> LinearScorer:
        head = now.network.head
        new = set(now.classes)
        old = memory.select([label for label in memory.labels if label not in new])
        if len(old):
            weight, bias = head.class_parameters()
            with now.runtime.seeded(now.name, "re-balancing"):  # the layer draws weights, which are replaced
                layer = nn.Linear(head.features, head.classes, head.bias).to(weight)
            layer.load_state_dict({"weight": weight, "bias": bias} if head.bias else {"weight": weight})
            batches = _Mixture(old, now, self)
            train(HeadObjective(layer), batches, self.recipe, now.runtime, f"{now.name}: re-balancing")
            head.set_class_parameters(layer.weight, layer.bias)
        return LinearScorer(*head.class_parameters())


class _Mixture:
    """Shuffled batches of one augmented copy of the task and fresh draws of the old classes."""

    def __init__(self, old: ClassGaussians, now: CurrentTask, part: Rebalanced) -> None:
        self.now = now
        self.views = part.views
        self.sampler = Sampler(old, part.jitter)
        self.drawn = torch.arange(len(old)).repeat_interleave(old.counts.cpu())
        self.targets = torch.cat([self.drawn.to(now.targets.device), now.targets + len(old)])
        self.bounds = batch_bounds(len(self.targets), part.recipe.batch_size, part.recipe.drop_last)

    def __len__(self) -> int:
        return len(self.bounds)

    def epoch(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        view = int(torch.randint(self.views, (1,), generator=generator))
        features = torch.cat([self.sampler.draw(self.drawn, generator), self.now.features(view)])
        order = torch.randperm(len(features), generator=generator).to(features.device)
        for start, stop in self.bounds:
            chosen = order[start:stop]
            yield features[chosen], self.targets[chosen]
