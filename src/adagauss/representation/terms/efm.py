"""The Empirical Feature Matrix of EFC: features may drift where old outputs do not feel it."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PrivateAttr
from torch import Tensor, nn

from adagauss.config import State
from adagauss.gaussians import ClassGaussians
from adagauss.representation.step import Step, Term
from adagauss.task import CurrentTask


def feature_matrix(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """E = mean_x Wᵀ(diag p − ppᵀ)W, p = softmax(Wf(x) + b): how outputs answer to a step of the features.

    It equals mean_x Σ_c p_c g_c g_cᵀ with g_c = Wᵀ(e_c − p), the gradient of log p_c; averaging p and ppᵀ over the
    images before multiplying by W leaves one C × C matrix to compute.
    """
    weight = weight.double()
    p = torch.softmax(features.double() @ weight.T + bias.double(), dim=1)
    spread = torch.diag(p.mean(0)) - p.T @ p / len(p)
    return weight.T @ spread @ weight


class FeatureMatrix(Term):
    """mean_x Δᵀ(λE + ηI)Δ with Δ = F_t(x) − F_{t−1}(x) and E of the previous task's end.

    E is measured anew on the current images when all else of a task is done, so with the outputs that predict. During
    a task the one before is to be found in its notes as ``feature_matrix``.
    """

    kind = "feature_matrix"
    importance: NonNegativeFloat = 10.0
    """λ."""
    damping: NonNegativeFloat = 0.1
    """η."""
    _matrix: Tensor | None = PrivateAttr(None)
    _metric: Tensor | None = PrivateAttr(None)

    def annotate(self, now: CurrentTask) -> None:
        if self._matrix is not None:
            now.notes["feature_matrix"] = self._matrix

    def begin(self, now: CurrentTask, memory: ClassGaussians) -> nn.Module | None:
        if self._matrix is not None:
            identity = torch.eye(len(self._matrix), device=self._matrix.device)
            self._metric = self.importance * self._matrix + self.damping * identity
        return None

    def loss(self, step: Step) -> Tensor | None:
        if self._metric is None:
            return None
        delta = step.features - step.previous_features
        return ((delta @ self._metric.to(delta)) * delta).sum(1).mean()

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> None:
        self._metric = None
        self._matrix = feature_matrix(now.features(0), *now.network.head.class_parameters()).float()

    def state_dict(self) -> State:
        return {} if self._matrix is None else {"matrix": self._matrix}

    def load_state_dict(self, state: State) -> None:
        self._matrix = state.get("matrix")
