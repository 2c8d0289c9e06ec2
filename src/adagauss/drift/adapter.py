"""AdaGauss' drift: an adapter ψ from the old latent space to the new one carries the old Gaussians along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from adagauss.drift.base import Drift
from adagauss.gaussians import ClassGaussians, Map
from adagauss.linalg import affine_ridge, sample_covariance
from adagauss.losses import Reduction, anti_collapse, squared_error
from adagauss.networks import mlp
from adagauss.task import CurrentTask
from adagauss.training import Recipe, batch_bounds, train


class Adapter(Drift):
    """ψ is trained on the current task's images alone; then every old Gaussian is sampled, mapped and re-estimated.

    With ``network="affine"`` the map is the closed-form ridge regression z ↦ zP + b and the transport is exact,
    μP + b and PᵀΣP, with nothing sampled and nothing trained.
    """

    kind = "adapter"

    network: Literal["mlp", "linear", "affine"] = "mlp"
    width: PositiveInt = 32
    recipe: Recipe = Field(default_factory=lambda: Recipe(epochs=100, learning_rate=0.01, milestones=(0.45, 0.9)))
    reduction: Reduction = "mean"
    anti_collapse: NonNegativeFloat = 1.0
    """α of the anti-collapse loss on ψ's output."""
    beta: PositiveFloat = 1.0
    views: NonNegativeInt = 4
    """Augmented copies of the task whose features ψ learns from, computed once; 0: the plain images."""
    samples: PositiveInt = 10_000
    """N, draws from each old Gaussian."""
    adapt_mean: bool = True
    adapt_covariance: bool = True
    mean_by: Literal["samples", "map"] = "samples"
    """New means are those of the mapped samples, or the mapped old means."""
    residual_covariance: NonNegativeFloat = 0.0
    """How much of the covariance of ψ's residuals is added to each transported covariance (1: all of it)."""
    ridge: NonNegativeFloat = 1e-2
    """Penalty of the affine map, relative to the mean variance of the old features."""

    def update(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new, _ = now.pairs(self.views)
        moved, mapping = self._transport(memory, now, old, new)
        means = moved.means if self.adapt_mean else memory.means
        if memory.covariance == "none" or not self.adapt_covariance:
            return memory.with_statistics(means, None)
        covariances = moved.covariances
        if self.residual_covariance:
            with torch.no_grad():
                residual = new.double() - mapping(old).double()
            covariances = covariances + self.residual_covariance * sample_covariance(residual)
        return memory.with_statistics(means, covariances)

    def _transport(
        self, memory: ClassGaussians, now: CurrentTask, old: Tensor, new: Tensor
    ) -> tuple[ClassGaussians, Map]:
        if self.network == "affine":
            affine = affine_ridge(old, new, self.ridge)
            return memory.transport_affine(affine), affine.__call__
        mapping = self.train_map(now, old, new)
        with torch.no_grad():
            means = mapping(memory.means.float()).double()
        if memory.covariance == "none":
            return memory.with_statistics(means, None), mapping
        moved = memory.transport(mapping, self.samples, now.runtime.generator(now.name, "transport"))
        if self.mean_by == "map":
            moved = moved.with_statistics(means, moved.covariances)
        return moved, mapping

    def train_map(self, now: CurrentTask, old: Tensor, new: Tensor) -> nn.Module:
        """ψ, trained on the features of the current images before and after."""
        size = old.shape[1]
        torch.manual_seed(now.runtime.seed_for(now.name, "adapter initialisation"))
        network = mlp(size, self.width) if self.network == "mlp" else nn.Linear(size, size)
        objective = MapObjective(network.to(now.runtime.device), self.reduction, self.anti_collapse, self.beta)
        batches = ViewBatches(old, new, max(1, self.views), self.recipe)
        train(objective, batches, self.recipe, now.runtime, f"{now.name}: adapter")
        return network.eval()


class ViewBatches:
    """Each epoch passes once over one of the cached views, as if the images had been augmented anew."""

    def __init__(self, old: Tensor, new: Tensor, views: int, recipe: Recipe) -> None:
        self.old = old.view(views, -1, old.shape[1])
        self.new = new.view(views, -1, new.shape[1])
        self.bounds = batch_bounds(self.old.shape[1], recipe.batch_size, recipe.drop_last)

    def __len__(self) -> int:
        return len(self.bounds)

    def epoch(self, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        view = int(torch.randint(len(self.old), (1,), generator=generator))
        order = torch.randperm(self.old.shape[1], generator=generator).to(self.old.device)
        for start, stop in self.bounds:
            chosen = order[start:stop]
            yield self.old[view, chosen], self.new[view, chosen]


class MapObjective:
    """‖ψ(F_{t−1}(x)) − F_t(x)‖² + α·L_AC(ψ(F_{t−1}(x)))."""

    def __init__(
        self, network: nn.Module, reduction: Reduction = "mean", alpha: float = 0.0, beta: float = 1.0
    ) -> None:
        self.module = network
        self.reduction: Reduction = reduction
        self.alpha = alpha
        self.beta = beta

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return [{"params": list(self.module.parameters()), "lr": learning_rate}]

    def begin_epoch(self, epoch: int, generator: torch.Generator) -> None:
        """Nothing here is random beyond the order of batches."""

    def losses(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        old, new = batch
        mapped = self.module(old)
        losses = {"adapter": squared_error(mapped, new, self.reduction)}
        if self.alpha:
            losses["anti_collapse"] = self.alpha * anti_collapse(mapped, self.beta)
        return losses
