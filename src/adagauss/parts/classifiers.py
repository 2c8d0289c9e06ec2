"""The classifier part: how features become labels."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from adagauss.backbones import Network
from adagauss.core import linalg
from adagauss.core.calibration import Fitted
from adagauss.core.config import Part, Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import ClassMap, Scorer, State
from adagauss.core.task import ClassEdit, CurrentTask, FitContext
from adagauss.core.train import Objective, Recipe, Sampler, TensorBatches, train
from adagauss.errors import UnsupportedError
from adagauss.utils.runtime import Runtime


class Classifier(Part):
    """Fits a scorer for all classes learned so far, in the order in which they were learned."""

    role: ClassVar[str] = "classifier"
    changes_network: ClassVar[bool] = False
    """Whether fitting changes the network, so that it cannot be repeated on the network of a finished run."""
    cheap: ClassVar[bool] = True
    """Whether it may be fitted a second time per task, without some images, for calibration."""

    def empty_state(self) -> Scorer:
        """A scorer that knows no class yet, with this classifier's settings; a linear one by default."""
        return LinearScorer()

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Scorer:
        """The scorer after a task, from the memory and the current task; data of old tasks is not available.

        ``before`` is the scorer after the last task. It must not be changed: other threads may still predict with it.
        """
        raise TypeError(f"{type(self).__name__} must define fit")

    def update(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Fitted:
        """As `fit`, with the scores of held-out images where the classifier computes them anyway."""
        return Fitted(self.fit(memory, now, before))

    def check(self, network: Network, classes: int, runtime: Runtime) -> None:
        """Refuse, before anything is computed, more classes than can be fitted."""

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> Scorer:
        """The scorer after classes were forgotten or merged; ``memory`` is the one after this edit.

        ``before`` must not be changed. A classifier that stores sums over images removes ``now.removed`` from them.
        """
        return before.remap_classes(now.groups)

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> Scorer:
        """The scorer of two learners with the same features as one; ``memory`` holds the classes of both.

        ``columns`` are the score columns of the other's classes. Neither scorer must be changed.
        """
        return one.merged(other, columns)


class MemoryClassifier(Classifier):
    """A classifier that depends on the memory alone."""

    def fit(self, memory: ClassGaussians, now: FitContext, before: State | None = None) -> Scorer:
        raise TypeError(f"{type(self).__name__} must define fit")

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> Scorer:
        return self.fit(memory, now)

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> Scorer:
        return self.fit(memory, now)


class BayesScorer(Scorer):
    """−½‖L_c⁻¹x − L_c⁻¹μ_c‖² + b_c, b_c = −½ log|Σ_c| + log p(c), each term only if it is switched on."""

    dims: ClassVar[Mapping[str, str]] = {"matrices": "css", "offsets": "cs", "bias": "c"}

    def __init__(self, tukey: float | None, normalize: bool, **buffers: Tensor) -> None:
        super().__init__(**buffers)
        self.power, self.normalize = tukey, normalize

    def forward(self, features: Tensor) -> Tensor:
        whitening = linalg.Whitening(self.matrices, self.offsets, self.bias)
        points = placed(features, self.power, self.normalize)
        return -0.5 * linalg.squared_distances(points, whitening) + self.bias


def placed(points: Tensor, tukey: float | None, normalize: bool) -> Tensor:
    """Points or means in the space where distances are measured."""
    if tukey is not None:
        # Methods with this transform have non-negative features; rounding may leave −0.0 or tiny negative values.
        points = points.clamp_min(0).pow(tukey)
    return F.normalize(points, dim=1) if normalize else points


class NearestMean(MemoryClassifier):
    """argmin_c ‖x − μ_c‖², on unit vectors if ``normalize``."""

    kind = "nearest_mean"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS})
    normalize: bool = False

    def empty_state(self) -> NearestMeanScorer:
        return NearestMeanScorer(None, self.normalize)

    def fit(self, memory: ClassGaussians, now: FitContext, before: State | None = None) -> NearestMeanScorer:
        means = F.normalize(memory.means, dim=1) if self.normalize else memory.means
        return NearestMeanScorer(means.float(), self.normalize)


class NearestMeanScorer(Scorer):
    """−‖x − μ_c‖² = −‖x − m‖² + 2(x − m)·(μ_c − m) − ‖μ_c − m‖², m the mean of the means.

    Relative to m, points and means are not larger than their distances, so the product form is precise, and one
    matrix product serves any number of points.
    """

    dims: ClassVar[Mapping[str, str]] = {"means": "cs"}

    def __init__(self, means: Tensor | None, normalize: bool) -> None:
        super().__init__(means=means)
        self.normalize = normalize

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
    """Full, diagonal or none for each class."""
    log_det: bool = True
    priors: bool = False
    """Weight classes by their number of training images; off: all classes have equal weight."""
    shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·mean(diag Σ)·I."""
    off_diagonal_shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·V·(1 − I), V the mean off-diagonal entry."""
    pooled_shrinkage: Annotated[float, Field(ge=0, le=1)] = 0.0
    """τ: fraction of the mean covariance of all classes in each (regularised discriminant analysis)."""
    correlation: bool = False
    """Replace each covariance by its correlation matrix."""
    normalize: bool = False
    """Scale features and means to unit length."""
    tukey: PositiveFloat | None = None
    """λ: points and means enter as x^λ; set ``memory.tukey`` to the same value, for covariances of x^λ."""

    @property
    def requires(self) -> frozenset[Requirement]:
        needs = {Requirement.MEANS} if self.covariance == "none" else {Requirement.MEANS, Requirement.COVARIANCES}
        return frozenset(needs | ({Requirement.NON_NEGATIVE} if self.tukey is not None else set()))

    def empty_state(self) -> BayesScorer:
        return BayesScorer(self.tukey, self.normalize)

    def fit(self, memory: ClassGaussians, now: FitContext, before: State | None = None) -> BayesScorer:
        return self.scorer(memory)

    def scorer(self, memory: ClassGaussians, dtype: torch.dtype = torch.float32) -> BayesScorer:
        """The rule over a bank of Gaussians, with factors stored in ``dtype``."""
        means = placed(memory.means, self.tukey, self.normalize)
        matrices, offsets, log_det = self._whitened(memory, means, dtype)
        bias = -0.5 * log_det if self.log_det else torch.zeros_like(log_det)
        if self.priors:
            bias = bias + (memory.counts.double() / memory.counts.sum()).log().to(log_det)
        return BayesScorer(self.tukey, self.normalize, matrices=matrices, offsets=offsets, bias=bias)

    def _whitened(self, memory: ClassGaussians, means: Tensor, dtype: torch.dtype) -> linalg.Whitening:
        """All classes, block by block: no more than the results and the matrices of one block are in memory."""
        size, classes = memory.size, len(memory)
        whitening = linalg.Whitening(
            means.new_empty(classes, size, size, dtype=dtype),
            means.new_empty(classes, size, dtype=dtype),
            means.new_empty(classes, dtype=dtype),
        )
        mean = memory.mean_covariance if self.pooled_shrinkage and self.covariance != "none" else None
        start = 0
        for some in memory.blocks():
            rows = slice(start, start + len(some))
            found = linalg.whiten(means[rows], self.matrices(some, mean), dtype)
            for whole, part in zip(whitening, found, strict=True):
                whole[rows] = part
            start += len(some)
        return whitening

    def matrices(self, memory: ClassGaussians, mean: Tensor | None = None) -> Tensor:
        """(C, S, S) covariances as the rule uses them; ``mean`` is that of all classes, if these are only some."""
        if self.covariance == "none":
            return torch.eye(memory.size, dtype=torch.float64, device=memory.means.device).expand(len(memory), -1, -1)
        matrices = memory.covariances
        if self.pooled_shrinkage:
            mean = matrices.mean(0, keepdim=True) if mean is None else mean
            matrices = torch.lerp(matrices, mean, self.pooled_shrinkage)
        if self.covariance == "diagonal":
            matrices = torch.diag_embed(matrices.diagonal(dim1=-2, dim2=-1))
        if self.shrinkage:
            matrices = linalg.shrink_to_identity(matrices, self.shrinkage)
        if self.off_diagonal_shrinkage:
            matrices = linalg.shrink_off_diagonal(matrices, self.off_diagonal_shrinkage)
        return linalg.correlation(matrices) if self.correlation else matrices


class LinearScorer(Scorer):
    """xWᵀ + b, with x scaled to unit length if ``normalize``."""

    dims: ClassVar[Mapping[str, str]] = {"weight": "cs", "bias": "c"}

    def __init__(self, weight: Tensor | None = None, bias: Tensor | None = None, normalize: bool = False) -> None:
        super().__init__(weight=weight, bias=bias)
        self.normalize = normalize

    def forward(self, features: Tensor) -> Tensor:
        points = F.normalize(features, dim=1) if self.normalize else features
        return F.linear(points.to(self.weight), self.weight, self.bias)

    def remap_classes(self, groups: ClassMap) -> Self:
        if any(len(group) > 1 for group in groups):
            raise UnsupportedError(
                "classes cannot be merged: this method has one trained output for each class, and two outputs cannot "
                "be added; forget them, and teach the images of all of them as one class"
            )
        kept = [column for (column,) in groups]
        fewer = copy.deepcopy(self)
        fewer.weight, fewer.bias = self.weight[kept], self.bias[kept]
        return fewer

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        raise UnsupportedError(
            "two learners of this method cannot be merged: the outputs of each were trained without the classes of the "
            "other; teach one of them the classes of the other"
        )


class SampledLinear(MemoryClassifier):
    """Linear(S, C) trained with cross-entropy on fresh draws from the Gaussians of uniformly drawn classes."""

    kind = "sampled_linear"
    requires: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS, Requirement.COVARIANCES})
    cheap = False
    samples: PositiveInt = 10_000
    """Draws per epoch."""
    recipe: Recipe = Field(default_factory=lambda: Recipe(epochs=30, batch_size=128, milestones=(0.5,), clip_norm=1.0))

    def fit(self, memory: ClassGaussians, now: FitContext, before: State | None = None) -> LinearScorer:
        with now.runtime.seeded(now.name, "linear initialisation"):
            head = nn.Linear(memory.size, len(memory)).to(now.runtime.device)
        sampler = Sampler(memory)

        def draw(epoch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
            targets = torch.randint(len(memory), (self.samples,), generator=generator)
            draws = sampler.draw(targets, generator)
            return draws, targets.to(draws.device)

        batches = TensorBatches(draw, self.samples, self.recipe, shuffle=False)
        train(HeadObjective(head), batches, self.recipe, now.runtime, f"{now.name}: linear head")
        return LinearScorer(head.weight.detach(), head.bias.detach())


class LearnedHead(Classifier):
    """The outputs that the network itself has learned, all tasks side by side."""

    kind = "learned_head"
    requires: ClassVar[frozenset[Requirement]] = frozenset(
        {Requirement.KEPT_HEADS, Requirement.LINEAR_HEAD, Requirement.NEW_CLASSES}
    )

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> LinearScorer:
        return LinearScorer(*now.network.head.class_parameters())


class HeadObjective(Objective):
    """Cross-entropy of a head on features."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"cross_entropy": F.cross_entropy(self.head(features), targets)}
