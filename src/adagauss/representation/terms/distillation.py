"""Distillation from the previous network: through a projector, of features, or of logits."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import mlp
from adagauss.losses import Reduction, feature_norm, logit_distillation, squared_error
from adagauss.representation.step import LiveTerm, Step, Term


class ProjectedDistillation(Term):
    """λ · L_PKD: squared error between φ(F_t(x)) and F_{t−1}(x), φ a learnable MLP (eq. 3); ``weight`` is λ."""

    kind = "projected_distillation"
    weight: NonNegativeFloat = 10.0
    reduction: Reduction = "mean"
    """``mean`` over batch and dimensions (published code; λ = 10 belongs to it) or ``sum`` (the text)."""
    width: PositiveInt = 32
    """d: the projector's hidden layer is d·S wide."""

    def start(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> LiveTerm:
        return LiveTerm.without_effect() if now.previous is None else _Projected(self, now.network.extractor.size)


class _Projected(LiveTerm):
    """φ, trained with the network and dropped after the task."""

    def __init__(self, part: ProjectedDistillation, features: int) -> None:
        super().__init__()
        self.projector = mlp(features, part.width)
        self.reduction: Reduction = part.reduction

    def forward(self, step: Step) -> Tensor:
        return squared_error(self.projector(step.features), step.previous_features, self.reduction)


class FeatureDistillation(Term):
    """λ times the squared error between F_t(x) and F_{t−1}(x); ``weight`` is λ."""

    kind = "feature_distillation"
    weight: NonNegativeFloat = 10.0
    reduction: Reduction = "mean"
    """``mean`` over batch and dimensions, or ``sum``."""

    def loss(self, step: Step) -> Tensor | None:
        if step.now.previous is None:
            return None
        return squared_error(step.features, step.previous_features, self.reduction)


class NormDistillation(Term):
    """λ·‖F_t(X) − F_{t−1}(X)‖_F over the batch, neither squared nor averaged (PASS, IL2A); ``weight`` is λ."""

    kind = "norm_distillation"
    weight: NonNegativeFloat = 10.0

    def loss(self, step: Step) -> Tensor | None:
        return None if step.now.previous is None else feature_norm(step.features, step.previous_features)


class LogitDistillation(Term):
    """λ times the cross-entropy between the old outputs of both networks at ``temperature``; ``weight`` is λ."""

    kind = "logit_distillation"
    weight: NonNegativeFloat = 10.0
    temperature: PositiveFloat = 2.0

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.KEPT_HEADS})

    def loss(self, step: Step) -> Tensor | None:
        previous = step.now.previous
        if previous is None:
            return None
        old = previous.head.seen(step.previous_features)
        return logit_distillation(step.now.network.head.seen(step.features)[:, : old.shape[1]], old, self.temperature)
