"""The Empirical Feature Matrix of EFC: features may drift in directions that do not affect old outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import SharedState, State, as_state
from adagauss.core.task import CurrentTask
from adagauss.representation.step import LiveTerm, Step, Term


def feature_matrix(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """E = mean_x Wᵀ(diag p − ppᵀ)W, p = softmax(Wf(x) + b): how outputs react to a change of the features.

    It equals mean_x Σ_c p_c g_c g_cᵀ with g_c = Wᵀ(e_c − p), the gradient of log p_c; averaging p and ppᵀ over the
    images before multiplying by W leaves one C × C matrix to compute.
    """
    weight = weight.double()
    p = torch.softmax(features.double() @ weight.T + bias.double(), dim=1)
    spread = torch.diag(p.mean(0)) - p.T @ p / len(p)
    return weight.T @ spread @ weight


class FeatureMatrix(Term):
    """mean_x Δᵀ(λE + ηI)Δ with Δ = F_t(x) − F_{t−1}(x) and E from the end of the previous task.

    E is measured on the current images at the very end of a task, so with the outputs used for prediction. During a
    task other parts may read the previous E as ``feature_matrix``.
    """

    kind = "feature_matrix"
    importance: NonNegativeFloat = 10.0
    """λ."""
    damping: NonNegativeFloat = 0.1
    """η."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.KEPT_HEADS, Requirement.LINEAR_HEAD})

    @property
    def provides(self) -> frozenset[Requirement]:
        return frozenset({Requirement.FEATURE_MATRIX})

    def empty_state(self) -> MeasuredMatrix:
        return MeasuredMatrix()

    def start(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> LiveTerm:
        return _InMetric(self, as_state(before, MeasuredMatrix))

    def shares(self, before: State) -> dict[str, Tensor]:
        return {"feature_matrix": before.matrix} if isinstance(before, MeasuredMatrix) else {}


class MeasuredMatrix(SharedState):
    """E as it was measured at the end of a task, over all outputs there were then."""

    axes: ClassVar[Mapping[str, str]] = {"matrix": "ss"}
    contents: ClassVar[str] = "how much each direction of the features matters, over all classes together"

    def __init__(self, matrix: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.zeros(0, 0) if matrix is None else matrix)
        self.matrix: Tensor


class _InMetric(LiveTerm):
    """The penalty in the metric of the previous E; none in the first task."""

    def __init__(self, part: FeatureMatrix, before: MeasuredMatrix | None) -> None:
        super().__init__()
        self.metric: Tensor | None = None
        if before is not None:
            identity = torch.eye(len(before.matrix), device=before.matrix.device)
            self.metric = part.importance * before.matrix + part.damping * identity

    def forward(self, step: Step) -> Tensor | None:
        if self.metric is None:
            return None
        delta = step.features - step.previous_features
        return ((delta @ self.metric.to(delta)) * delta).sum(1).mean()

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> MeasuredMatrix:
        return MeasuredMatrix(feature_matrix(now.features(0), *now.network.head.class_parameters()).float())
