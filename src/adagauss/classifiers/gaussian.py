"""Classifiers over the Gaussians: nearest mean, and Bayes with every variation in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from adagauss import linalg
from adagauss.classifiers.base import MemoryClassifier, Scorer
from adagauss.gaussians import ClassGaussians
from adagauss.needs import Need
from adagauss.task import Occasion


class NearestMean(MemoryClassifier):
    """argmin_c ‖x − μ_c‖², on unit vectors if ``normalize``."""

    kind = "nearest_mean"
    normalize: bool = False

    @property
    def requires(self) -> frozenset[Need]:
        return frozenset({Need.MEANS})

    def empty_state(self) -> NearestMeanScorer:
        return NearestMeanScorer(torch.zeros(0, 0), self.normalize)

    def of_memory(self, memory: ClassGaussians, now: Occasion) -> NearestMeanScorer:
        means = F.normalize(memory.means, dim=1) if self.normalize else memory.means
        return NearestMeanScorer(means.float(), self.normalize)


class NearestMeanScorer(Scorer):
    """−‖x − μ_c‖² = −‖x − m‖² + 2(x − m)·(μ_c − m) − ‖μ_c − m‖², m the mean of the means.

    Relative to m, points and means are no larger than their distances, so the product form loses no precision, and one
    matrix product serves any number of points.
    """

    axes: ClassVar[Mapping[str, str]] = {"means": "cs"}
    keeps: ClassVar[str] = "the mean of each class again, as the classifier uses it"

    def __init__(self, means: Tensor, normalize: bool) -> None:
        super().__init__()
        self.normalize = normalize
        self.register_buffer("means", means)
        self.means: Tensor

    def forward(self, features: Tensor) -> Tensor:
        points = F.normalize(features, dim=1) if self.normalize else features
        centre = self.means.mean(0)
        points, means = points.to(self.means) - centre, self.means - centre
        lengths = points.square().sum(1, keepdim=True) + means.square().sum(1)
        return 2 * points @ means.T - lengths


class Bayes(MemoryClassifier):
    """argmax_c log p(x | c) + log p(c) over N(μ_c, Σ_c) (eq. 5), all classes in one matrix product.

    The covariances pass, in this order, through shrinkage to the mean covariance, shrinkage to the identity, that of
    the off-diagonal and correlation normalisation, each off by default. Points and means are first raised to the power
    ``tukey`` and, with ``normalize``, scaled to unit length. The published code is
    ``shrinkage=3, correlation=True, normalize=True, log_det=False``.
    """

    kind = "bayes"
    covariance: Literal["full", "diagonal", "none"] = "full"
    log_det: bool = True
    priors: bool = False
    """Weight classes by their number of training images; off: all classes have equal weight."""
    shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·mean(diag Σ)·I."""
    off_diagonal_shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·V·(1 − I), V the mean off-diagonal entry."""
    tied: Annotated[float, Field(ge=0, le=1)] = 0.0
    """τ: fraction of the mean covariance of all classes in each (regularised discriminant analysis)."""
    correlation: bool = False
    """Replace each covariance by its correlation matrix."""
    normalize: bool = False
    """Scale features and means to unit length."""
    tukey: PositiveFloat | None = None
    """λ: points and means enter as x^λ; set ``memory.tukey`` to the same value, for covariances of x^λ."""

    @property
    def requires(self) -> frozenset[Need]:
        needs = {Need.MEANS} if self.covariance == "none" else {Need.MEANS, Need.COVARIANCES}
        return frozenset(needs | ({Need.NON_NEGATIVE} if self.tukey is not None else set()))

    def empty_state(self) -> BayesScorer:
        nothing = linalg.Whitening(torch.zeros(0, 0, 0), torch.zeros(0, 0), torch.zeros(0))
        return BayesScorer(nothing, torch.zeros(0), self.tukey, self.normalize)

    def of_memory(self, memory: ClassGaussians, now: Occasion) -> BayesScorer:
        return self.scorer(memory)

    def scorer(self, memory: ClassGaussians, dtype: torch.dtype = torch.float32) -> BayesScorer:
        """The rule over a bank of Gaussians, with factors kept in ``dtype``."""
        means = _placed(memory.means, self.tukey, self.normalize)
        whitening = linalg.whiten(means, self.matrices(memory), dtype)
        bias = torch.zeros_like(whitening.log_det)
        if self.log_det:
            bias = bias - 0.5 * whitening.log_det
        if self.priors:
            bias = bias + (memory.counts.double() / memory.counts.sum()).log().to(bias)
        return BayesScorer(whitening, bias, self.tukey, self.normalize)

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


class BayesScorer(Scorer):
    """−½‖L_c⁻¹x − L_c⁻¹μ_c‖² + b_c, b_c = −½ log|Σ_c| + log p(c), each term only if it is switched on."""

    axes: ClassVar[Mapping[str, str]] = {"matrices": "css", "offsets": "cs", "bias": "c"}
    keeps: ClassVar[str] = "the mean and the inverse covariance of each class, as the classifier uses them"

    def __init__(self, whitening: linalg.Whitening, bias: Tensor, tukey: float | None, normalize: bool) -> None:
        super().__init__()
        self.tukey = tukey
        self.normalize = normalize
        self.register_buffer("matrices", whitening.matrices)
        self.register_buffer("offsets", whitening.offsets)
        self.register_buffer("bias", bias)
        self.matrices: Tensor
        self.offsets: Tensor
        self.bias: Tensor

    @property
    def power(self) -> float | None:
        return self.tukey

    def forward(self, features: Tensor) -> Tensor:
        points = _placed(features, self.tukey, self.normalize)
        whitening = linalg.Whitening(self.matrices, self.offsets, self.bias)
        return -0.5 * linalg.squared_distances(points, whitening) + self.bias


def _placed(points: Tensor, tukey: float | None, normalize: bool) -> Tensor:
    """Points or means in the space where distances are measured."""
    if tukey is not None:
        # Methods with this transform have non-negative features; rounding may leave −0.0 or tiny negative values.
        points = points.clamp_min(0).pow(tukey)
    return F.normalize(points, dim=1) if normalize else points
