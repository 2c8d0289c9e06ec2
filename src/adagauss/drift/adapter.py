"""AdaGauss' drift: an adapter ψ maps the old Gaussians from the old latent space to the new one."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import affine_ridge, sample_covariance
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe, mlp, train
from adagauss.drift.affine import AffineMap
from adagauss.drift.base import Drift, Moved
from adagauss.drift.health import Fit, collapse, fit_of
from adagauss.drift.maps import MapObjective, ViewBatches
from adagauss.losses import Reduction

JUDGED = 0.1
"""Share of the images that judge a map which may be replaced."""


class Adapter(Drift):
    """ψ is trained on the images of the current task; then every old Gaussian is sampled, mapped and re-estimated."""

    kind = "adapter"

    network: Literal["mlp", "linear"] = "mlp"
    width: PositiveInt = 32
    """d: the hidden layer of the MLP is d·S wide."""
    recipe: Recipe = Field(default_factory=lambda: Recipe(epochs=100, learning_rate=0.01, milestones=(0.45, 0.9)))
    reduction: Reduction = "mean"
    anti_collapse: NonNegativeFloat = 1.0
    """α of the anti-collapse loss on ψ's output."""
    beta: PositiveFloat = 1.0
    views: NonNegativeInt = 4
    """Augmented copies of the task whose features ψ is trained on, computed once; 0: the plain images.

    Epochs take them in turn. As many as ``recipe.epochs`` give new augmentations in every epoch, as published, at the
    cost of one pass through both networks per epoch.
    """
    samples: PositiveInt = 10_000
    """N, draws from each old Gaussian."""
    adapt_mean: bool = True
    adapt_covariance: bool = True
    mean_by: Literal["samples", "map"] = "samples"
    """New means: those of the mapped samples, or the mapped old means."""
    residual_covariance: NonNegativeFloat = 0.0
    """How much of the covariance of ψ's residuals is added to each transported covariance (1: all of it)."""
    least_steps: NonNegativeInt = 500
    """Steps that ψ is trained for at the least: a small task is passed over several times per epoch."""
    fallback: bool = False
    """Keep a tenth of the images from ψ's training, and move by the affine map instead if ψ explains them worse, or if
    Gaussians collapse under ψ."""

    def update(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Moved:
        old, new, _ = now.pairs(self.views)
        taught = self._taught(now).to(old.device)
        mapping = self.train_map(now, old[taught], new[taught])
        judged = taught if bool(taught.all()) else ~taught
        affine = affine_ridge(old[taught], new[taught], AffineMap().ridge)
        fit = fit_of(mapping, affine.__call__, old[judged], new[judged])
        moved = self.moved(memory, now, mapping, old, new)
        if self.fallback:
            exact = AffineMap(views=self.views, residual_covariance=1.0).move(memory, now)
            if fit.trained > fit.affine or collapse(moved, exact) is not None:
                return Moved(exact)
        return Moved(moved, warning=self._warning(now, fit))

    def moved(
        self, memory: ClassGaussians, now: CurrentTask, mapping: nn.Module, old: Tensor, new: Tensor
    ) -> ClassGaussians:
        """Every old Gaussian sampled, mapped and re-estimated."""
        with torch.no_grad():
            mapped_means = mapping(memory.means.float()).double()
            residual = new.double() - mapping(old).double() if self.residual_covariance else None
        extra = 0.0 if residual is None else self.residual_covariance * sample_covariance(residual)
        if memory.covariance == "none":
            return memory.with_statistics(mapped_means, None) if self.adapt_mean else memory
        moved = memory.transport(mapping, self.samples, now.runtime.generator(now.name, "transport"), extra)
        means = memory.means
        if self.adapt_mean:
            means = mapped_means if self.mean_by == "map" else moved.means
        if not self.adapt_covariance:
            return memory.with_statistics(means, None)
        return moved.with_statistics(means, None)

    def train_map(self, now: CurrentTask, old: Tensor, new: Tensor) -> nn.Module:
        """ψ, trained on the features of the current images before and after."""
        size = old.shape[1]
        with now.runtime.seeded(now.name, "adapter initialisation"):
            network = mlp(size, self.width) if self.network == "mlp" else nn.Linear(size, size)
        objective = MapObjective(network.to(now.runtime.device), self.reduction, self.anti_collapse, self.beta)
        batches = ViewBatches(old, new, max(1, self.views), self.recipe, self.least_steps)
        train(objective, batches, self.recipe, now.runtime, f"{now.name}: adapter")
        return network

    def _taught(self, now: CurrentTask) -> Tensor:
        """Which rows of the pairs ψ is trained on: all, or those of nine images in ten with ``fallback``."""
        kept = torch.ones(len(now.data), dtype=torch.bool)
        if self.fallback:
            order = torch.randperm(len(now.data), generator=now.runtime.generator(now.name, "judged"))
            kept[order[: round(JUDGED * len(kept))]] = False
        return kept.repeat(max(1, self.views))

    def _warning(self, now: CurrentTask, fit: Fit) -> str | None:
        if not fit.poor:
            return None
        return (
            f"{now.name}: the adapter has hardly learned how the features moved (relative error {fit.trained:.2f} on "
            f"current images; an affine map has {fit.affine:.2f}, no map {fit.none:.2f}), so old classes may be lost: "
            "raise drift.least_steps or drift.recipe.epochs, set drift.fallback=true (preset practical), or use "
            "drift.kind=affine"
        )
