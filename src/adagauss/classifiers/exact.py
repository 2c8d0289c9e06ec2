"""Exact classifiers: ridge regression and discriminant analysis of everything seen, from running sums that only add up.

As long as the features stand still, the sums do not depend on the order of the classes or their division into tasks.
Neither does the solution at a given strength; the strength itself is chosen on images held out as they arrive.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any, Self

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator
from torch import Tensor

from adagauss.backbones import Network
from adagauss.classifiers.base import Classifier, Scorer
from adagauss.errors import ConfigError, DataError
from adagauss.gaussians import ClassGaussians
from adagauss.linalg import summed_columns
from adagauss.needs import Need
from adagauss.runtime import Runtime
from adagauss.state import Learned, recalled
from adagauss.sums import Calibration, FeatureSums, Linear, RidgeChoice, RidgeSums, SharedCovariance, hold_out
from adagauss.sums.choice import IMAGES
from adagauss.sums.memory import check_fits
from adagauss.task import CurrentTask, Occasion, Upkeep

MOST_HELD_OUT = 4000
"""Images held out per task at the most: more tell strengths apart no better, and their features wait in memory."""


class RandomFeatures(Learned):
    """ReLU(f·B), B Gaussian and fixed (RanPAC). B is drawn anew from its seed when it is loaded, and not saved.

    A sum over B is: another release of torch may draw other numbers from the same seed, and is then noticed.
    """

    def __init__(self, seed: int = 0, features: int = 0, size: int = 0) -> None:
        super().__init__()
        self.register_buffer("drawn", torch.tensor([seed, features, size]))
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))
        self.register_buffer("matrix", torch.zeros(0, 0), persistent=False)
        self.drawn: Tensor
        self.total: Tensor
        self.matrix: Tensor
        self._draw()
        self.total = self.matrix.double().sum()

    def forward(self, features: Tensor) -> Tensor:
        return (features @ self.matrix).relu()

    def _draw(self) -> None:
        seed, features, size = self.drawn.tolist()
        generator = torch.Generator().manual_seed(seed)
        self.matrix = torch.randn(features, size, generator=generator).to(self.drawn.device)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._draw()
        if not torch.isclose(self.matrix.double().sum(), self.total, atol=1e-6):
            errors: list[str] = args[-1]
            errors.append("this torch draws other random features from the seed than the one that saved the learner")


class SumsScorer(Scorer):
    """xW + b with x the features or random features of them, and the sums that W and b were solved from."""

    def __init__(self, sums: FeatureSums, random: RandomFeatures | None, solution: Linear | None = None) -> None:
        super().__init__()
        weight, bias = solution or (torch.zeros(0, 0), torch.zeros(0))
        self.sums = sums
        self.random = random
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor
        self.bias: Tensor

    def expanded(self, features: Tensor) -> Tensor:
        """What the sums are over."""
        return features if self.random is None else self.random(features)

    @property
    def class_sums(self) -> Tensor:
        return self.sums.cross

    def both_sums(self, other: SumsScorer, columns: Sequence[int]) -> FeatureSums:
        """The sums of both together; ``columns`` are those of the other's classes."""
        mine, theirs = (None if one.random is None else one.random.matrix for one in (self, other))
        if mine is not None and theirs is not None and not torch.equal(mine, theirs):
            raise DataError("these learners have different random features: make both with the same seed")
        return self.sums.copy().merge_(other.sums, columns)

    def forward(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, self.expanded(features.to(self.weight)), self.weight)


class RidgeScorer(SumsScorer):
    """A ridge regression with what was found out about its strength."""

    def __init__(
        self,
        sums: RidgeSums,
        random: RandomFeatures | None,
        choice: RidgeChoice,
        solution: Linear | None = None,
    ) -> None:
        super().__init__(sums, random, solution)
        self.choice = choice


class LDAScorer(SumsScorer):
    """Discriminant functions with what was found out about their truthfulness as log-probabilities."""

    def __init__(
        self,
        sums: SharedCovariance,
        random: RandomFeatures | None,
        calibration: Calibration,
        solution: Linear | None = None,
    ) -> None:
        super().__init__(sums, random, solution)
        self.calibration = calibration


class ExactClassifier(Classifier):
    """A linear classifier solved from sums over the images of all classes."""

    flips: bool = False
    """Count the mirror image of an image as an image of its class."""
    random_features: PositiveInt | None = None
    """Size of a fixed random expansion ReLU(f·B) of the features (RanPAC); None: the features themselves."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the arriving images that settings and the temperature of probabilities are chosen on."""

    @property
    def requires(self) -> frozenset[Need]:
        return frozenset({Need.STILL_FEATURES})

    def _random(self, now: CurrentTask) -> RandomFeatures | None:
        if self.random_features is None:
            return None
        # 63 bits of a seed fit a tensor of whole numbers.
        seed = now.runtime.seed_for("random features")
        return RandomFeatures(seed, now.network.extractor.size, self.random_features).to(now.runtime.device)

    def _no_random(self) -> RandomFeatures | None:
        return RandomFeatures() if self.random_features is not None else None

    def take_in(self, known: SumsScorer, sums: FeatureSums, now: CurrentTask) -> tuple[Tensor, Tensor]:
        """Add the current images to the sums, but for a share of them: features of every view of these, and targets."""
        waiting = _Waiting()
        columns, classes = torch.tensor(now.columns), len(now.all_classes)
        share = min(self.held_out, MOST_HELD_OUT / len(now.data))
        held = hold_out(now.data.targets, share, now.runtime.generator(now.name, "held out"))
        for rows, views in now.blocks(self.flips):
            targets, out = columns[now.data.targets[rows]], held[rows]
            expanded = torch.stack([known.expanded(view) for view in views])
            for view in expanded:
                sums.add_(view[~out], targets[~out], classes)
            waiting.append(expanded[:, out], targets[out])
        return waiting.joined()

    def _width(self, now: CurrentTask) -> int:
        return self.random_features or now.network.extractor.size

    def check(self, network: Network, classes: int, runtime: Runtime) -> None:
        trunk = network.extractor.trunk
        width = self.random_features or network.extractor.size

        def setting(most: int) -> str:
            return trunk.narrower(most) if self.random_features is None else f"classifier.random_features={most}"

        check_fits(width, classes, runtime.free_memory, setting)

    def _without_images(self, known: SumsScorer, removed: CurrentTask | None) -> FeatureSums:
        """A copy of the sums, without the images that are given again."""
        sums = known.sums.copy()
        if removed is not None:
            columns = torch.tensor(removed.columns)
            for rows, views in removed.blocks(self.flips):
                for view in views:
                    sums.remove_(known.expanded(view), columns[removed.data.targets[rows]])
        return sums


class ExactLDA(ExactClassifier):
    """Linear discriminant analysis: one mean per class, one covariance for all, shrunk as far as the data ask for."""

    kind = "exact_lda"
    shrinkage: Annotated[float, Field(ge=0, le=1)] | None = None
    """τ of (1 − τ)Σ + τ·mean(diag Σ)·I; None: oracle approximating shrinkage, from the sums alone."""
    priors: bool = False
    """Weigh classes by their number of training images; off: all alike."""

    def empty_state(self) -> LDAScorer:
        return LDAScorer(SharedCovariance(0), self._no_random(), Calibration())

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: Learned | None) -> LDAScorer:
        known = recalled(before, LDAScorer)
        if known is None:
            nothing = SharedCovariance(self._width(now)).to(now.runtime.device)
            known = LDAScorer(nothing, self._random(now), Calibration().to(now.runtime.device))
        sums, calibration = known.sums.copy(), copy.deepcopy(known.calibration)
        assert isinstance(sums, SharedCovariance)
        late, labels = self.take_in(known, sums, now)
        if sums.has_covariance and len(labels):
            calibration.observe(sums.solve(self.shrinkage, self.priors)(late.mean(0)), labels)
        for view in late:
            sums.add_(view, labels)
        return self._solved(sums, known.random, calibration)

    def regrouped(self, memory: ClassGaussians, now: Upkeep, before: Scorer) -> LDAScorer:
        assert isinstance(before, LDAScorer)
        sums = self._without_images(before, now.removed).regroup_(now.groups)
        return self._solved(sums, before.random, before.calibration.regrouped(now.groups))

    def merged(
        self, memory: ClassGaussians, now: Occasion, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> LDAScorer:
        assert isinstance(one, LDAScorer)
        assert isinstance(other, LDAScorer)
        return self._solved(
            one.both_sums(other, columns), one.random, one.calibration.merged(other.calibration, columns)
        )

    def _solved(self, sums: FeatureSums, random: RandomFeatures | None, calibration: Calibration) -> LDAScorer:
        assert isinstance(sums, SharedCovariance)
        solution = sums.solve(self.shrinkage, self.priors)
        return LDAScorer(sums, random, calibration, solution.divided_by(calibration.temperature))


class ExactRidge(ExactClassifier):
    """Ridge regression of one-hot labels on the features of all images ever seen.

    How strong the ridge is, is chosen on a share of the arriving images that is held out first and added afterwards;
    what was found in earlier tasks counts as well.
    """

    kind = "exact_ridge"
    strengths: tuple[PositiveFloat, ...] = IMAGES
    """Strengths ν that are compared; the penalty is λ = ν/n after n training images, relative to mean(diag A)."""

    intercept: bool = False
    """Regress centred labels on centred features, so that a constant in the features does not count."""
    group_weights: tuple[tuple[NonNegativeFloat, ...], ...] | None = None
    """Weights of the network's groups of features that are compared, e.g. of patches and a pretrained network; not used
    where there is one group."""

    @field_validator("strengths")
    @classmethod
    def _some_strengths(cls, strengths: tuple[float, ...]) -> tuple[float, ...]:
        if not strengths:
            raise ValueError("name one strength at least")
        return strengths

    @field_validator("group_weights")
    @classmethod
    def _as_many_each(cls, weights: tuple[tuple[float, ...], ...] | None) -> tuple[tuple[float, ...], ...] | None:
        if weights is not None and (not weights or len({len(one) for one in weights}) != 1):
            raise ValueError("give as many weights in each choice as there are groups of features")
        return weights

    def empty_state(self) -> RidgeScorer:
        return RidgeScorer(RidgeSums(0), self._no_random(), RidgeChoice(self.strengths, intercept=self.intercept))

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: Learned | None) -> RidgeScorer:
        known, groups = recalled(before, RidgeScorer), self._groups(now.network)
        if known is None:
            nothing = RidgeSums(self._width(now)).to(now.runtime.device)
            known = RidgeScorer(nothing, self._random(now), self._choice(groups).to(now.runtime.device))
        sums, choice = known.sums.copy(), copy.deepcopy(known.choice)
        assert isinstance(sums, RidgeSums)
        late, labels = self.take_in(known, sums, now)
        choice.observe(sums, late.mean(0), labels, groups)
        for view in late:
            sums.add_(view, labels)
        return RidgeScorer(sums, known.random, choice, choice.solve(sums, groups))

    def regrouped(self, memory: ClassGaussians, now: Upkeep, before: Scorer) -> RidgeScorer:
        assert isinstance(before, RidgeScorer)
        sums, choice = self._without_images(before, now.removed).regroup_(now.groups), before.choice
        assert isinstance(sums, RidgeSums)
        choice = choice.regrouped(now.groups)
        if now.removed is not None:
            return RidgeScorer(sums, before.random, choice, choice.solve(sums, self._groups(now.network)))
        # W and b are linear in the columns, so nothing need be solved anew.
        solution = Linear(summed_columns(before.weight, now.groups), summed_columns(before.bias, now.groups))
        return RidgeScorer(sums, before.random, choice, solution)

    def merged(
        self, memory: ClassGaussians, now: Occasion, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> RidgeScorer:
        assert isinstance(one, RidgeScorer)
        assert isinstance(other, RidgeScorer)
        sums, choice = one.both_sums(other, columns), one.choice.merged(other.choice, columns)
        assert isinstance(sums, RidgeSums)
        return RidgeScorer(sums, one.random, choice, choice.solve(sums, self._groups(now.network)))

    def _groups(self, network: Network) -> tuple[int, ...]:
        """Sizes of the groups of features that the sums are over."""
        return network.extractor.groups if self.random_features is None else (self.random_features,)

    def _choice(self, groups: Sequence[int]) -> RidgeChoice:
        if len(groups) == 1 or self.group_weights is None:
            return RidgeChoice(self.strengths, intercept=self.intercept)
        if len(groups) != len(self.group_weights[0]):
            raise ConfigError(
                f"the network has {len(groups)} groups of features, and classifier.group_weights weighs "
                f"{len(self.group_weights[0])}: give one weight for each group"
            )
        return RidgeChoice(self.strengths, self.group_weights, self.intercept)


class _Waiting:
    """Features of the images that are held out, of every view."""

    def __init__(self) -> None:
        self._views: list[Tensor] = []
        self._targets: list[Tensor] = []

    def append(self, views: Tensor, targets: Tensor) -> Self:
        self._views.append(views)
        self._targets.append(targets)
        return self

    def joined(self) -> tuple[Tensor, Tensor]:
        """(views, N, width) features and (N,) targets."""
        return torch.cat(self._views, 1), torch.cat(self._targets)
