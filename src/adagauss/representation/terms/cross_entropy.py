"""Cross-entropy over the classes of the current task, or over all seen ones."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor

from adagauss.backbones import IncrementalHead
from adagauss.core.config import SECOND_OUTPUT, Requirement
from adagauss.representation.step import Step, Term


class CrossEntropy(Term):
    """L_CE. With ``over="current"`` old outputs are left out, so that new images cannot lower them."""

    kind = "cross_entropy"
    over: Literal["current", "seen"] = "current"
    temperature: PositiveFloat = 1.0
    """Logits are divided by it (PASS, IL2A and SSRE use 0.1)."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.KEPT_HEADS} if self.over == "seen" else ())

    @property
    def why_no_known_classes(self) -> str | None:
        return SECOND_OUTPUT if self.over == "seen" else None

    def loss(self, step: Step) -> Tensor:
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
