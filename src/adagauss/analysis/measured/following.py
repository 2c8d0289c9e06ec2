"""Memories on the networks of a run: as it left them, as they were stored, and with EFC's update of the means."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adagauss.analysis.measured.quantities import EFC_UPDATE, OWN, UNMOVED
from adagauss.analysis.visits import Visit
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import safe_cholesky
from adagauss.methods.efc import EFC, feature_matrix, metric_weights


def linear_discriminants(means: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs w_c = Σ⁻¹μ_c and b_c = −½ μ_cᵀΣ⁻¹μ_c: their softmax is Bayes' rule for Gaussians of one covariance."""
    weight = torch.cholesky_solve(means.double().T, safe_cholesky(covariance).factor).T
    return weight, -0.5 * (weight * means.double()).sum(1)


class Following:
    """The three memories, task after task. Only the means of EFC's are computed anew; the others are in checkpoints.

    EFC's update needs the feature matrix of the previous task, hence outputs. Where the method keeps none, linear
    discriminants of its own Gaussians stand for them, with the covariance of the classes of that task.
    """

    def __init__(self) -> None:
        self._unmoved: ClassGaussians | None = None
        self._moved_means = torch.zeros(0, 0)
        self._matrix = torch.zeros(0, 0)

    def after(self, visit: Visit, real: ClassGaussians) -> Mapping[str, ClassGaussians]:
        """The memories after a task, classes in the order they were learned; ``real`` holds those of the task."""
        own = visit.known.memory
        new = own.select(visit.now.classes)
        before = self._unmoved
        if before is None:
            self._unmoved, self._moved_means = new, new.means
        else:
            self._unmoved = before.copy()
            self._unmoved.merge(new)
            self._moved_means = torch.cat([self._updated(visit), new.means])
        self._matrix = self._measured(visit, real)
        return {
            OWN: own,
            UNMOVED: self._unmoved,
            EFC_UPDATE: self._unmoved.with_statistics(self._moved_means, None),
        }

    def _updated(self, visit: Visit) -> Tensor:
        """μ_c + Σ_i w_ci (F_t(x_i) − F_{t−1}(x_i)), as `methods.efc.EFC`, over the plain images of the task."""
        old, new = visit.now.features(previous=True).double(), visit.now.features().double()
        weights = metric_weights(self._moved_means, old, self._matrix, EFC().sigma)
        return self._moved_means + weights @ (new - old)

    def _measured(self, visit: Visit, real: ClassGaussians) -> Tensor:
        """The feature matrix at the end of the task, for the next one."""
        known = visit.known
        if known.network.head.blocks and sum(classes for classes, _ in known.network.head.sizes) == len(known.classes):
            outputs = known.network.head.class_parameters()
        else:
            common = real.select(visit.now.classes).covariances.mean(0)
            outputs = linear_discriminants(known.memory.means, common)
        return feature_matrix(visit.now.features(), *outputs)
