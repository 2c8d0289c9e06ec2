"""Loss terms that several methods share, and the functions of tensors they compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from adagauss.backbones import IncrementalHead
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import sample_covariance, training_cholesky
from adagauss.core.state import SharedState, State, as_state
from adagauss.core.task import CurrentTask
from adagauss.core.train import mlp
from adagauss.parts.representation import Step, Term
from adagauss.utils.runtime import to_device

Reduction = Literal["mean", "sum"]

COLLAPSED = 1e-6
"""Squared pivots below this share of the mean variance count as collapsed; this bounds the gradient of the loss."""


def anti_collapse(features: Tensor, beta: float = 1.0) -> Tensor:
    """L_AC = −(1/S) Σ_i min(a_i, β), with a the Cholesky diagonal of the minibatch's covariance (eq. 2).

    a_i is the standard deviation of feature i that the features before it do not explain, so the loss makes every
    direction have variance of its own, up to β. A batch of at most S images, or one whose features are linearly
    dependent, has a singular covariance: a jitter relative to its mean variance keeps loss and gradient finite. The
    computation is in float64. For fewer than two images the loss is zero.
    """
    if len(features) < 2:
        return features.sum() * 0.0
    covariance = sample_covariance(features.double())
    diagonal = training_cholesky(covariance, COLLAPSED).diagonal()
    return -diagonal.clamp(max=beta).mean().to(torch.promote_types(features.dtype, torch.float32))


def feature_norm(features: Tensor, previous: Tensor) -> Tensor:
    """‖F_t(X) − F_{t−1}(X)‖_F, neither squared nor averaged (PASS, IL2A), with zero gradient at zero."""
    squared = (features - previous).square().sum()
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, torch.ones_like(squared)).sqrt(), squared)


def logit_distillation(logits: Tensor, previous: Tensor, temperature: float = 2.0) -> Tensor:
    """−(1/B) Σ_b Σ_c softmax(o_old/T)_c · log softmax(o_new/T)_c, not multiplied by T² (LwF)."""
    teacher = F.softmax(previous / temperature, dim=1)
    return F.cross_entropy(logits / temperature, teacher)


class CrossEntropy(Term):
    """L_CE. With ``over="current"`` old outputs are left out, so that new images cannot lower them."""

    kind = "cross_entropy"
    over: Literal["current", "seen"] = "current"
    temperature: PositiveFloat = 1.0
    """Logits are divided by it (PASS, IL2A and SSRE use 0.1)."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.KEPT_HEADS, Requirement.NEW_CLASSES} if self.over == "seen" else ())

    def loss(self, step: Step, before: State | None = None) -> Tensor:
        logits, targets = self.outputs(step)
        return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)

    def outputs(self, step: Step) -> tuple[Tensor, Tensor]:
        """Logits, divided by the temperature, and the targets among them."""
        head = step.now.network.head
        if self.over == "current":
            logits, targets = head.current(step.features), step.targets
        else:
            logits = head.seen(step.features, auxiliary=True)
            targets = seen_targets(head, step.targets)
        return logits / self.temperature, targets


def seen_targets(head: IncrementalHead, targets: Tensor) -> Tensor:
    """Convert positions among the newest task's outputs to positions among the outputs of all tasks (classes first)."""
    new_classes, new_auxiliary = head.sizes[-1]
    old_classes = head.classes - new_classes
    old_auxiliary = sum(auxiliary for _, auxiliary in head.sizes) - new_auxiliary
    return torch.where(targets < new_classes, targets + old_classes, targets + old_classes + old_auxiliary)


class AntiCollapse(Term):
    """α · L_AC of the features (eq. 2); ``weight`` is α, ``beta`` the target standard deviation of every direction."""

    kind = "anti_collapse"
    beta: PositiveFloat = 1.0

    def loss(self, step: Step, before: State | None = None) -> Tensor:
        return anti_collapse(step.features, self.beta)


class FeatureDistillation(Term):
    """λ times the squared error between F_t(x) and F_{t−1}(x); ``weight`` is λ."""

    kind = "feature_distillation"
    weight: NonNegativeFloat = 10.0
    reduction: Reduction = "mean"
    """``mean`` over batch and dimensions (AdaGauss' published code; λ = 10 belongs to it) or ``sum`` (the text)."""

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        if step.now.previous is None:
            return None
        return F.mse_loss(step.features, step.previous_features, reduction=self.reduction)


class ProjectedDistillation(FeatureDistillation):
    """λ · L_PKD: squared error between φ(F_t(x)) and F_{t−1}(x), φ a learnable MLP (eq. 3); ``weight`` is λ."""

    kind = "projected_distillation"
    width: PositiveInt = 32
    """d: the projector's hidden layer is d·S wide."""

    def start(self, now: CurrentTask, memory: ClassGaussians) -> nn.Module | None:
        return None if now.previous is None else _Projected(self, now.network.extractor.size)


class _Projected(nn.Module):
    """φ, trained with the network and dropped after the task."""

    def __init__(self, part: ProjectedDistillation, features: int) -> None:
        super().__init__()
        self.projector = mlp(features, part.width)
        self.reduction: Reduction = part.reduction

    def forward(self, step: Step) -> Tensor:
        return F.mse_loss(self.projector(step.features), step.previous_features, reduction=self.reduction)


class NormDistillation(Term):
    """λ·‖F_t(X) − F_{t−1}(X)‖_F over the batch, neither squared nor averaged (PASS, IL2A); ``weight`` is λ."""

    kind = "norm_distillation"
    weight: NonNegativeFloat = 10.0

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        return None if step.now.previous is None else feature_norm(step.features, step.previous_features)


class LogitDistillation(Term):
    """λ times the cross-entropy between the old outputs of both networks at ``temperature``; ``weight`` is λ."""

    kind = "logit_distillation"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.KEPT_HEADS})
    weight: NonNegativeFloat = 10.0
    temperature: PositiveFloat = 2.0

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        previous = step.now.previous
        if previous is None:
            return None
        old = previous.head.seen(step.previous_features)
        return logit_distillation(step.now.network.head.seen(step.features)[:, : old.shape[1]], old, self.temperature)


class PrototypeReplay(Term):
    """Cross-entropy of old means μ_c + ρ·r·ε, ε ~ N(0, I), under all outputs (PASS, ρ = 1; SSRE, ρ = 0).

    One old class per image of the batch is drawn uniformly. The radius r is measured once, on the augmented images of
    the first task (see `radius`).
    """

    kind = "prototypes"
    requires: ClassVar[frozenset[Requirement]] = frozenset(
        {Requirement.MEANS, Requirement.KEPT_HEADS, Requirement.NEW_CLASSES}
    )
    weight: NonNegativeFloat = 10.0
    temperature: PositiveFloat = 0.1
    noise: NonNegativeFloat = 1.0
    """ρ, the noise in units of the radius; 0 replays the means without noise."""

    def empty_state(self) -> Radius:
        return Radius()

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        if not len(step.memory):
            return None
        drawn = draw_classes(step)
        points = step.memory.means[drawn].float()
        known = as_state(before, Radius)
        if self.noise and known is not None:
            noise = to_device(torch.randn(points.shape, generator=step.generator), points.device)
            points = points + self.noise * known.radius.float() * noise
        logits = step.now.network.head.seen(points, auxiliary=True)
        return F.cross_entropy(logits / self.temperature, drawn)

    def finish(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> State | None:
        if before is None and self.noise:
            return Radius(radius(now.features(0), now.targets))
        return before


class Radius(SharedState):
    """r, one number."""

    dims: ClassVar[Mapping[str, str]] = {"radius": ""}
    non_negative = ("radius",)

    def __init__(self, radius: Tensor | None = None) -> None:
        super().__init__(radius=torch.zeros((), dtype=torch.float64) if radius is None else radius)


def radius(features: Tensor, targets: Tensor) -> Tensor:
    """r with r² = mean over classes of tr(Σ_c)/S: one standard deviation for all classes and directions."""
    variances = ClassGaussians.from_features(features, targets.tolist(), "diagonal").packed
    return variances.mean().sqrt()


def draw_classes(step: Step) -> Tensor:
    """Old classes, uniformly at random, one per image of the batch before label augmentation.

    Stored classes have the order of the head's outputs, so their positions are also labels.
    """
    number = len(step.images) if step.originals is None else step.originals
    drawn = torch.randint(len(step.memory), (number,), generator=step.generator)
    return to_device(drawn, step.memory.means.device)
