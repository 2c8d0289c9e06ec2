"""Training a map from the old latent space to the new one: batches of feature pairs and their objective."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from adagauss.core.train import Objective, Recipe, batch_bounds
from adagauss.losses import Reduction, anti_collapse, squared_error


class ViewBatches:
    """Each epoch passes once over one of the cached views, which take turns.

    With as many views as epochs, every epoch sees the images augmented anew. An epoch passes over its view several
    times if all epochs together would have fewer than ``least_steps`` batches: a small task is no easier to learn.
    """

    def __init__(self, old: Tensor, new: Tensor, views: int, recipe: Recipe, least_steps: int = 0) -> None:
        self.old = old.view(views, -1, old.shape[1])
        self.new = new.view(views, -1, new.shape[1])
        self.bounds = batch_bounds(self.old.shape[1], recipe.batch_size, recipe.drop_last)
        self.passes = max(1, math.ceil(least_steps / (recipe.epochs * len(self.bounds))))

    def __len__(self) -> int:
        return self.passes * len(self.bounds)

    def epoch(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        # By the epoch's number, not by a count of calls: a training that is resumed sees the views it would have seen.
        view = epoch % len(self.old)
        for _ in range(self.passes):
            order = torch.randperm(self.old.shape[1], generator=generator).to(self.old.device)
            for start, stop in self.bounds:
                chosen = order[start:stop]
                yield self.old[view, chosen], self.new[view, chosen]


class MapObjective(Objective):
    """‖ψ(F_{t−1}(x)) − F_t(x)‖² + α·L_AC(ψ(F_{t−1}(x)))."""

    def __init__(
        self, network: nn.Module, reduction: Reduction = "mean", alpha: float = 0.0, beta: float = 1.0
    ) -> None:
        super().__init__()
        self.network = network
        self.reduction: Reduction = reduction
        self.alpha = alpha
        self.beta = beta

    def forward(self, old: Tensor, new: Tensor) -> dict[str, Tensor]:
        mapped = self.network(old)
        losses = {"adapter": squared_error(mapped, new, self.reduction)}
        if self.alpha:
            losses["anti_collapse"] = self.alpha * anti_collapse(mapped, self.beta)
        return losses
