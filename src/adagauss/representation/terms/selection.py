"""SSRE's prototype selection: images near an old class are weighted in distillation, the others in cross-entropy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from adagauss.core.config import Requirement
from adagauss.representation.step import Step, Term
from adagauss.representation.terms.cross_entropy import CrossEntropy


class SelectiveCrossEntropy(CrossEntropy):
    """mean over the batch of (1 − s(x)) · CE(x), s the similarity to the nearest old mean (0 in the first task)."""

    kind = "selective_cross_entropy"
    detach: bool = False
    """Treat s as a constant; off, as in the published code, gradients flow through it too."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return super().requires | frozenset({Requirement.MEANS})

    def loss(self, step: Step) -> Tensor:
        logits, targets = self.outputs(step)
        losses = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing, reduction="none")
        return ((1 - similarity(step, self.detach)) * losses).mean()


class SelectiveDistillation(Term):
    """Σ over the batch of s(x) · ‖F_t(x) − F_{t−1}(x)‖₂: a sum, so the weight depends on the batch size."""

    kind = "selective_distillation"
    weight: NonNegativeFloat = 1.0
    detach: bool = False

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.MEANS})

    def loss(self, step: Step) -> Tensor | None:
        if not len(step.memory):
            return None
        # The networks are equal when a task begins; a vector's norm has gradient zero there.
        moved: Tensor = torch.linalg.vector_norm(step.features - step.previous_features, dim=1)
        return (similarity(step, self.detach) * moved).sum()


def similarity(step: Step, detach: bool) -> Tensor:
    """(B,) s(x) = max over old classes of cos(F_t(x), μ_c), clamped to 0..1 since cosines may be negative."""
    if not len(step.memory):
        return step.features.new_zeros(len(step.features))
    features = step.features.detach() if detach else step.features
    means = F.normalize(step.memory.means, dim=1).to(features.dtype)
    return (F.normalize(features, dim=1) @ means.T).amax(1).clamp(0, 1)
