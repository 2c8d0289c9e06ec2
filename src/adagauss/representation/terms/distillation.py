"""Distillation from the network before the task: through a projector, of features, or of logits."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, PrivateAttr
from torch import Tensor, nn

from adagauss.gaussians import ClassGaussians
from adagauss.losses import Reduction, feature_norm, logit_distillation, squared_error
from adagauss.networks import mlp
from adagauss.representation.step import Step, Term
from adagauss.task import CurrentTask


class Distillation(Term):
    """λ · L_PKD and its alternatives; ``weight`` is λ.

    - ``projected``: squared error between φ(F_t(x)) and F_{t−1}(x), φ a learnable MLP (eq. 3);
    - ``feature``: squared error between F_t(x) and F_{t−1}(x);
    - ``norm``: their Frobenius distance, neither squared nor averaged;
    - ``logit``: cross-entropy between the old outputs of both networks at ``temperature`` (needs kept heads).
    """

    kind = "distillation"
    weight: NonNegativeFloat = 10.0
    target: Literal["projected", "feature", "norm", "logit"] = "projected"
    reduction: Reduction = "mean"
    """``mean`` over batch and dimensions (published code; λ = 10 belongs to it) or ``sum`` (the text)."""
    width: PositiveInt = 32
    """d: the projector's hidden layer is d·S wide."""
    temperature: PositiveFloat = 2.0
    _projector: nn.Module | None = PrivateAttr(None)

    def begin(self, now: CurrentTask, memory: ClassGaussians) -> nn.Module | None:
        needed = self.target == "projected" and now.previous is not None
        self._projector = mlp(now.network.extractor.size, self.width).to(now.runtime.device) if needed else None
        return self._projector

    def loss(self, step: Step) -> Tensor | None:
        previous = step.now.previous
        if previous is None:
            return None
        if self.target == "logit":
            old = previous.head.seen(step.previous_features)
            return logit_distillation(
                step.now.network.head.seen(step.features)[:, : old.shape[1]], old, self.temperature
            )
        if self.target == "norm":
            return feature_norm(step.features, step.previous_features)
        features = self._projector(step.features) if self._projector is not None else step.features
        return squared_error(features, step.previous_features, self.reduction)

    def end(self, now: CurrentTask, memory: ClassGaussians) -> None:
        self._projector = None
