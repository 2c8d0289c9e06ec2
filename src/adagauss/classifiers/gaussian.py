"""Classifiers over the Gaussians: nearest mean, and Bayes with every variation in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor

from adagauss.classifiers.base import MemoryClassifier
from adagauss.classifiers.bayes_scorers import BayesScorer, LowRankBayesScorer, Placed, SharedBayesScorer, placed
from adagauss.core import linalg, low_rank
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians, LowRank
from adagauss.core.state import Scorer
from adagauss.core.task import FitContext


class NearestMean(MemoryClassifier):
    """argmin_c ‖x − μ_c‖², on unit vectors if ``normalize``."""

    kind = "nearest_mean"
    normalize: bool = False

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.MEANS})

    def empty_state(self) -> NearestMeanScorer:
        return NearestMeanScorer(torch.zeros(0, 0), self.normalize)

    def of_memory(self, memory: ClassGaussians, now: FitContext) -> NearestMeanScorer:
        means = F.normalize(memory.means, dim=1) if self.normalize else memory.means
        return NearestMeanScorer(means.float(), self.normalize)


class NearestMeanScorer(Scorer):
    """−‖x − μ_c‖² = −‖x − m‖² + 2(x − m)·(μ_c − m) − ‖μ_c − m‖², m the mean of the means.

    Relative to m, points and means are no larger than their distances, so the product form loses no precision, and one
    matrix product serves any number of points.
    """

    axes: ClassVar[Mapping[str, str]] = {"means": "cs"}
    contents: ClassVar[str] = "the mean of each class again, as the classifier uses it"

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
    covariance: Literal["full", "diagonal", "low_rank", "shared", "none"] = "full"
    """Of each class: whole, its diagonal, as few factors and a diagonal (``memory.covariance=low_rank``), or none; or
    one of all classes, the mean weighted by images, with which the rule is linear."""
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

    @model_validator(mode="after")
    def _within_the_form(self) -> Bayes:
        if self.covariance == "low_rank" and (self.tied or self.off_diagonal_shrinkage):
            raise ValueError(
                "covariances of few factors and a diagonal cannot be shrunk to their mean or in the off-diagonal, "
                "which would need S × S numbers again: leave out tied and off_diagonal_shrinkage; shrinkage works"
            )
        return self

    @property
    def requires(self) -> frozenset[Requirement]:
        kinds = {"none": set(), "shared": {Requirement.SPREAD}, "low_rank": {Requirement.FACTORS}}
        needs = {Requirement.MEANS} | kinds.get(self.covariance, {Requirement.COVARIANCES})
        return frozenset(needs | ({Requirement.NON_NEGATIVE} if self.tukey is not None else set()))

    def empty_state(self) -> Placed:
        nothing, empty = torch.zeros(0), torch.zeros(0, 0)
        if self.covariance == "shared":
            return SharedBayesScorer(nothing, empty, nothing, self.tukey, self.normalize)
        if self.covariance == "low_rank":
            factors = torch.zeros(0, 0, 0)
            unknown = low_rank.FactoredWhitening(nothing, empty, empty, nothing, factors, empty, nothing)
            return LowRankBayesScorer(unknown, nothing, self.tukey, self.normalize)
        whitening = linalg.Whitening(torch.zeros(0, 0, 0), empty, nothing)
        return BayesScorer(whitening, nothing, self.tukey, self.normalize)

    def of_memory(self, memory: ClassGaussians, now: FitContext) -> Placed:
        return self.scorer(memory)

    def scorer(self, memory: ClassGaussians, dtype: torch.dtype = torch.float32) -> Placed:
        """The rule over a bank of Gaussians, with factors kept in ``dtype``."""
        means = placed(memory.means, self.tukey, self.normalize)
        if self.covariance == "shared":
            scorer = SharedBayesScorer.of(means, self.altered(memory.pooled), dtype, self.tukey, self.normalize)
            scorer.bias += self._log_priors(memory, scorer.bias)
            return scorer
        if self.covariance == "low_rank":
            factored = low_rank.whiten(means, self.factored(memory), dtype)
            bias = self._bias(memory, factored.log_det)
            return LowRankBayesScorer(factored, bias, self.tukey, self.normalize)
        whitening = self._whitened(memory, means, dtype)
        return BayesScorer(whitening, self._bias(memory, whitening.log_det), self.tukey, self.normalize)

    def _whitened(self, memory: ClassGaussians, means: Tensor, dtype: torch.dtype) -> linalg.Whitening:
        """All classes, block by block: no more than the results and the matrices of one block are in memory."""
        size, classes = memory.size, len(memory)
        whitening = linalg.Whitening(
            means.new_empty(classes, size, size, dtype=dtype),
            means.new_empty(classes, size, dtype=dtype),
            means.new_empty(classes, dtype=dtype),
        )
        mean = memory.mean_covariance if self.tied and self.covariance != "none" else None
        start = 0
        for some in memory.blocks():
            rows = slice(start, start + len(some))
            found = linalg.whiten(means[rows], self.matrices(some, mean), dtype)
            for whole, part in zip(whitening, found, strict=True):
                whole[rows] = part
            start += len(some)
        return whitening

    def _bias(self, memory: ClassGaussians, log_det: Tensor) -> Tensor:
        return self._log_priors(memory, log_det) - (0.5 * log_det if self.log_det else 0)

    def _log_priors(self, memory: ClassGaussians, like: Tensor) -> Tensor:
        if not self.priors:
            return torch.zeros_like(like)
        return (memory.counts.double() / memory.counts.sum()).log().to(like)

    def matrices(self, memory: ClassGaussians, mean: Tensor | None = None) -> Tensor:
        """(C, S, S) covariances as the rule uses them; ``mean`` is that of all classes, if these are only some."""
        if self.covariance == "none":
            return torch.eye(memory.size, dtype=torch.float64, device=memory.means.device).expand(len(memory), -1, -1)
        if self.covariance == "shared":
            return self.altered(memory.pooled).unsqueeze(0)
        if self.covariance == "low_rank":
            return low_rank.dense(low_rank.floored(self.factored(memory)))
        matrices = memory.covariances
        if self.tied:
            matrices = linalg.shrink_to_mean(matrices, self.tied, mean)
        if self.covariance == "diagonal":
            matrices = torch.diag_embed(matrices.diagonal(dim1=-2, dim2=-1))
        return self.altered(matrices)

    def altered(self, matrices: Tensor) -> Tensor:
        """Matrices after shrinkage and correlation normalisation."""
        if self.shrinkage:
            matrices = linalg.shrink_to_identity(matrices, self.shrinkage)
        if self.off_diagonal_shrinkage:
            matrices = linalg.shrink_off_diagonal(matrices, self.off_diagonal_shrinkage)
        return linalg.correlation(matrices) if self.correlation else matrices

    def factored(self, memory: ClassGaussians) -> low_rank.Factored:
        """The same of covariances of few factors and a diagonal, which stay so."""
        assert isinstance(memory.form, LowRank), "refused when a method is made (Need.FACTORS)"
        matrix = memory.form.parts(memory.packed)
        if self.shrinkage:
            matrix = low_rank.shrink_to_identity(matrix, self.shrinkage)
        return low_rank.correlation(matrix) if self.correlation else matrix
