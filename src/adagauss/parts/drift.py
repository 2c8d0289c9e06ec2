"""The drift part: how the memory follows the extractor.

Here are those of AdaGauss. SDC, LDC and ADC are in `adagauss.methods.lwf`, EFC's is in `adagauss.methods.efc`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from adagauss.core import linalg
from adagauss.core.config import Part, Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import affine_ridge, sample_covariance
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import Objective, Recipe, TensorBatches, mlp, train
from adagauss.parts.terms import Reduction, anti_collapse


class Drift(Part):
    """Moves the stored classes from the latent space of F_{t−1} to that of F_t."""

    role: ClassVar[str] = "drift"

    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS})

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        """The old classes in the latent space of the new extractor; called from the second task on.

        ``now.drift_state`` is what `finish` returned after the last task.
        """
        raise TypeError(f"{type(self).__name__} must define move")

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> State | None:
        """The state for the next task, measured at the end of this one; `empty_state` must make an empty one."""
        return None


class NoDrift(Drift):
    """The memory is not changed."""

    kind = "none"
    requires: ClassVar[frozenset[Requirement]] = frozenset()

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        return memory


def view_batches(old: Tensor, new: Tensor, views: int, recipe: Recipe, min_steps: int = 0) -> TensorBatches:
    """Batches of the cached views of a task, which take turns; a small task is passed over several times per epoch.

    With as many views as epochs, every epoch has new augmentations.
    """
    pairs = tuple(features.view(views, -1, features.shape[1]) for features in (old, new))
    # By the number of the epoch, not by a count of calls: a resumed training sees the same views.
    return TensorBatches(
        lambda epoch, _: tuple(one[epoch % views] for one in pairs), len(old) // views, recipe, min_steps
    )


class MapObjective(Objective):
    """‖ψ(F_{t−1}(x)) − F_t(x)‖² + α·L_AC(ψ(F_{t−1}(x)))."""

    def __init__(self, network: nn.Module, part: Adapter) -> None:
        super().__init__()
        self.network, self.part = network, part

    def forward(self, old: Tensor, new: Tensor) -> dict[str, Tensor]:
        mapped, alpha = self.network(old), self.part.anti_collapse
        losses = {"adapter": F.mse_loss(mapped, new, reduction=self.part.reduction)}
        if alpha:
            losses["anti_collapse"] = alpha * anti_collapse(mapped, self.part.beta)
        return losses


class MappedDrift(Drift):
    """A drift that maps the latent space of F_{t−1} to that of F_t, by default means and covariances."""

    adapt_mean: bool = True
    adapt_covariance: bool = True

    def adapted(self, memory: ClassGaussians, moved: ClassGaussians) -> ClassGaussians:
        """The mapped means and covariances, of those that are adapted."""
        means = moved.means if self.adapt_mean else memory.means
        return (moved if self.adapt_covariance else memory).with_statistics(means, None)


class AffineMap(MappedDrift):
    """z ↦ zP + b is the ridge regression of F_t(x) on F_{t−1}(x) over the current images; the transport is exact.

    μ_c ← μ_c P + b and Σ_c ← PᵀΣ_c P + r·R: nothing is sampled or trained. R is the covariance of the
    regression's residuals, the variance that a regression loses (law of total covariance).
    """

    kind = "affine"
    ridge: NonNegativeFloat = 1e-2
    """Penalty of the map, relative to the mean variance of the old features."""
    views: NonNegativeInt = 4
    """Augmented copies of the task that the map is fitted on; 0: the plain images."""
    residual_covariance: NonNegativeFloat = 0.0
    """r: how much of the residuals' covariance is added to each covariance (1: all of it)."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new = now.pairs(self.views)
        affine = affine_ridge(old, new, self.ridge)
        residuals = sample_covariance(new.double() - affine(old))
        return self.adapted(memory, memory.transport_affine(affine, self.residual_covariance * residuals))


POOR = 0.5
"""Relative error above which an adapter may be poor."""
POOR_RATIO = 1.5
"""An adapter is poor if its error is also this many times that of the affine map, or of no map."""
COLLAPSED = 2.0
"""Drop of the mean log-variance per feature, relative to the new classes: a standard deviation of 37 %."""
FLOOR = 1e-3
"""Added to covariances, relative to their mean diagonal: few images span few directions."""


def relative_error(mapped: Tensor, new: Tensor) -> float:
    """Σ‖ψ(x) − y‖² / Σ‖y − ȳ‖²: 0 for a perfect map, 1 for the mean alone."""
    error = (mapped.double() - new.double()).square().sum()
    spread = (new.double() - new.double().mean(0)).square().sum()
    return float(error / spread.clamp_min(torch.finfo(torch.float64).tiny))


def mean_log_variance(bank: ClassGaussians) -> float:
    """log|Σ̄| / S of the mean covariance of a bank."""
    covariance = linalg.shrink_to_identity(bank.mean_covariance, FLOOR)
    factor = linalg.safe_cholesky(covariance).factor
    return float(2 * factor.diagonal().log().sum()) / bank.size


def collapse_warning(name: str, old: ClassGaussians, memory: ClassGaussians) -> str | None:
    """A warning if the moved old classes are far tighter than the new classes in ``memory``."""
    new = memory.select([label for label in memory.labels if label not in old.labels])
    if old.covariance == "none" or not len(old) or not len(new):
        return None
    lost = mean_log_variance(new) - mean_log_variance(old)
    if lost <= COLLAPSED:
        return None
    return (
        f"{name}: the Gaussians of old classes have collapsed (their mean log-variance is {lost:.1f} below that of the "
        "new classes), so few images will be predicted as them: use drift.kind=affine with "
        "drift.residual_covariance=1, or raise drift.anti_collapse"
    )


class Adapter(MappedDrift):
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
    min_steps: NonNegativeInt = 500
    """Minimum number of training steps: a small task is passed over several times per epoch."""

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        old, new = now.pairs(self.views)
        mapping = self.train_map(now, old, new)
        with torch.no_grad():
            trained = relative_error(mapping(old), new)
        affine = relative_error(affine_ridge(old, new, AffineMap().ridge)(old), new)
        none = relative_error(old, new)
        if trained > POOR and trained > POOR_RATIO * min(affine, none):
            now.warn(
                f"{now.name}: the adapter has hardly learned how the features moved (relative error {trained:.2f} on "
                f"current images; an affine map has {affine:.2f}, no map {none:.2f}), so old classes may be lost: "
                "raise drift.min_steps or drift.recipe.epochs, or set drift.kind=affine"
            )
        return self.moved(memory, now, mapping)

    def moved(self, memory: ClassGaussians, now: CurrentTask, mapping: nn.Module) -> ClassGaussians:
        """Sample, map and re-estimate every old Gaussian; a bank of means alone is mapped directly."""
        if memory.covariance != "none":
            generator = now.runtime.generator(now.name, "transport")
            return self.adapted(memory, memory.transport(mapping, self.samples, generator))
        with torch.no_grad():
            return self.adapted(memory, memory.with_statistics(mapping(memory.means.float()), None))

    def initial_map(self, now: CurrentTask, size: int) -> nn.Module:
        """ψ before its training."""
        return mlp(size, self.width) if self.network == "mlp" else nn.Linear(size, size)

    def train_map(self, now: CurrentTask, old: Tensor, new: Tensor) -> nn.Module:
        """Train ψ on the features of the current images before and after the task."""
        with now.runtime.seeded(now.name, "adapter initialisation"):
            network = self.initial_map(now, old.shape[1])
        objective = MapObjective(network.to(now.runtime.device), self)
        batches = view_batches(old, new, max(1, self.views), self.recipe, self.min_steps)
        train(objective, batches, self.recipe, now.runtime, f"{now.name}: adapter")
        return network
