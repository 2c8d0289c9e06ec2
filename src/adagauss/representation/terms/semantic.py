"""IL2A's semantic augmentation: replay of infinitely many draws from every old Gaussian, by an upper bound."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from adagauss.core.config import SECOND_OUTPUT, Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.representation.step import LiveTerm, Step, Term
from adagauss.representation.terms.prototypes import draw_classes


class SemanticAugmentation(Term):
    """Cross-entropy of old classes c under the logits of `upper_bound_logits`, over class outputs only.

    The expected cross-entropy of z ~ N(μ_c, ratio·Σ_c) under the head is at most that of these logits (at
    temperature 1), so nothing has to be sampled. Gradients reach the head's weights through the quadratic forms too.
    """

    kind = "semantic_augmentation"
    weight: NonNegativeFloat = 10.0
    temperature: PositiveFloat = 0.1
    ratio: NonNegativeFloat = 2.5
    """Factor of the stored covariances; lower it if this term dominates the others."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.SPREAD, Requirement.KEPT_HEADS, Requirement.LINEAR_HEAD})

    @property
    def why_no_known_classes(self) -> str | None:
        return SECOND_OUTPUT

    def start(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> LiveTerm:
        return _Semantic(self, memory) if len(memory) else LiveTerm.without_effect()


class _Semantic(LiveTerm):
    """The old Gaussians during one task, unpacked once rather than in every step."""

    def __init__(self, part: SemanticAugmentation, memory: ClassGaussians) -> None:
        super().__init__()
        self.part = part
        self.means, self.covariances = memory.means.float(), memory.covariances.float()

    def forward(self, step: Step) -> Tensor:
        # Draws of a class are identical: each class is computed once and weighted by how often it was drawn.
        drawn = draw_classes(step)
        classes, times = torch.unique(drawn, return_counts=True)
        weight, bias = step.now.network.head.class_parameters(detach=False)
        logits = upper_bound_logits(
            weight, bias, self.means[classes], self.covariances[classes], classes, self.part.ratio
        )
        losses: Tensor = F.cross_entropy(logits / self.part.temperature, classes, reduction="none")
        return torch.sum(losses * times) / len(drawn)


def upper_bound_logits(
    weight: Tensor, bias: Tensor, means: Tensor, covariances: Tensor, classes: Tensor, ratio: float
) -> Tensor:
    """(K, C) logits ŷ_j = w_jᵀμ_c + b_j + (ratio/2)·(w_j − w_c)ᵀ Σ_c (w_j − w_c) of K classes c.

    Args:
        weight: (C, S) rows w_j of the head.
        bias: (C,) b_j.
        means: (K, S) means μ_c.
        covariances: (K, S, S) covariances Σ_c.
        classes: (K,) positions of the classes c among the rows.
        ratio: factor of the covariances.
    """
    apart = weight.unsqueeze(0) - weight[classes].unsqueeze(1)
    quadratic: Tensor = torch.linalg.vecdot(torch.bmm(apart, covariances), apart)
    return F.linear(means, weight, bias) + ratio / 2 * quadratic
