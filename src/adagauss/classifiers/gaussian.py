"""Classifiers over the Gaussians: nearest mean, and Bayes with every variation in use."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PrivateAttr
from torch import Tensor

from adagauss import linalg
from adagauss.classifiers.base import Classifier
from adagauss.config import State
from adagauss.gaussians import ClassGaussians
from adagauss.task import CurrentTask


class NearestMean(Classifier):
    """argmin_c ‖x − μ_c‖², on unit vectors if ``normalise``."""

    kind = "nearest_mean"
    normalise: bool = False
    _means: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(0, 0))

    def fit(self, memory: ClassGaussians, now: CurrentTask) -> None:
        means = F.normalize(memory.means, dim=1) if self.normalise else memory.means
        self._means = means.float()

    def scores(self, features: Tensor) -> Tensor:
        points = F.normalize(features, dim=1) if self.normalise else features
        return -torch.cdist(points.to(self._means), self._means).square()

    def state_dict(self) -> State:
        return {"means": self._means}

    def load_state_dict(self, state: State) -> None:
        self._means = state["means"]


class Bayes(Classifier):
    """argmax_c log p(x | c) + log p(c) over N(μ_c, Σ_c) (eq. 5), all classes in one matrix product.

    The covariances pass, in this order, through shrinkage to the mean covariance, shrinkage to the identity, that of
    the off-diagonal and correlation normalisation, each off unless set. Points and means are raised to the power
    ``tukey`` and, with ``normalise``, scaled to unit length first. The published code is
    ``shrinkage=3, correlation=True, normalise=True, log_det=False``.
    """

    kind = "bayes"
    covariance: Literal["full", "diagonal", "none"] = "full"
    log_det: bool = True
    priors: bool = False
    """Weigh classes by their number of training images; off: all alike."""
    shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·mean(diag Σ)·I."""
    off_diagonal_shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·V·(1 − I), V the mean off-diagonal entry."""
    tied: Annotated[float, Field(ge=0, le=1)] = 0.0
    """τ: fraction of the mean covariance of all classes in each (regularised discriminant analysis)."""
    correlation: bool = False
    """Replace each covariance by its correlation matrix."""
    normalise: bool = False
    """L2-normalise features and means."""
    tukey: PositiveFloat | None = None
    """λ: points and means enter as x^λ; set ``memory.tukey`` alike, so that covariances are of such features."""
    _whitening: linalg.Whitening | None = PrivateAttr(None)
    _log_priors: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(0))

    @property
    def needs_covariances(self) -> bool:
        return self.covariance != "none"

    def fit(self, memory: ClassGaussians, now: CurrentTask) -> None:
        self.fit_bank(memory)

    def fit_bank(self, memory: ClassGaussians) -> None:
        """Prepare from the Gaussians alone."""
        self._whitening = linalg.whiten(self._placed(memory.means), self.matrices(memory))
        counts = memory.counts.double()
        self._log_priors = (counts / counts.sum()).log().float() if self.priors else torch.zeros(len(memory))

    def matrices(self, memory: ClassGaussians) -> Tensor:
        """(C, S, S) covariances as the rule uses them."""
        if self.covariance == "none":
            return torch.eye(memory.size, dtype=torch.float64, device=memory.means.device).expand(len(memory), -1, -1)
        matrices = memory.covariances
        if self.covariance == "diagonal":
            matrices = torch.diag_embed(matrices.diagonal(dim1=-2, dim2=-1))
        if self.tied:
            matrices = linalg.shrink_to_mean(matrices, self.tied)
        if self.shrinkage:
            matrices = linalg.shrink_to_identity(matrices, self.shrinkage)
        if self.off_diagonal_shrinkage:
            matrices = linalg.shrink_off_diagonal(matrices, self.off_diagonal_shrinkage)
        return linalg.correlation(matrices) if self.correlation else matrices

    def scores(self, features: Tensor) -> Tensor:
        assert self._whitening is not None, "fit comes before scores"
        scores = -0.5 * linalg.squared_distances(self._placed(features), self._whitening)
        if self.log_det:
            scores = scores - 0.5 * self._whitening.log_det
        return scores + self._log_priors.to(scores.device)

    def _placed(self, points: Tensor) -> Tensor:
        """Points or means where distances are measured."""
        if self.tukey is not None:
            points = linalg.tukey(points, self.tukey)
        return F.normalize(points, dim=1) if self.normalise else points

    def state_dict(self) -> State:
        if self._whitening is None:
            return {}
        return {**self._whitening._asdict(), "log_priors": self._log_priors}

    def load_state_dict(self, state: State) -> None:
        if state:
            self._whitening = linalg.Whitening(state["matrices"], state["offsets"], state["log_det"])
            self._log_priors = state["log_priors"]
