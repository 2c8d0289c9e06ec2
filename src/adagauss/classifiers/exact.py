"""Exact classifiers: ridge regression and discriminant analysis of everything seen, from running sums that only add up.

As long as the features stand still, the sums do not depend on the order of the classes or their division into tasks.
Neither does the solution by a given rule; the rule itself is chosen on arriving images, each left out in turn.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator
from torch import Tensor

from adagauss.backbones import Network
from adagauss.classifiers.random_features import RandomFeatures
from adagauss.classifiers.taking import take_in, take_out
from adagauss.core.calibration import Fitted, HoldoutFitter, LeftOut, no_holdout_fit
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import Scorer, State, as_state
from adagauss.core.task import ClassEdit, CurrentTask, FitContext
from adagauss.errors import ConfigError, DataError
from adagauss.parts.classifiers import Classifier
from adagauss.sums import Choice, Discriminant, FeatureSums, Linear, Strength, Weighing
from adagauss.sums.choice import STRENGTHS, Candidates
from adagauss.sums.memory import check_fits
from adagauss.utils.runtime import Runtime

MOST_FEATURES = 2**16
"""Largest number of features of a network that a file may name."""
Weights = tuple[NonNegativeFloat, ...]
Shrinkage = Annotated[float, Field(ge=0, le=1)] | None
SHRINKAGES = (None, 0.3, 0.6, 0.85)
"""Oracle approximating shrinkage shrinks too little for the few images per feature that photographs give."""


class ExactScorer(Scorer):
    """xW + b with x the features or random features of them, what W and b were solved from, and by which rule."""

    axes: ClassVar[Mapping[str, str]] = {"weight": "ec", "bias": "c"}
    contents: ClassVar[str] = "the weights of each class"

    def check(self) -> None:
        """Raise a `DataError` if the weights do not belong to the sums."""
        super().check()
        shape = (self.sums.width, self.sums.classes)
        self.require(tuple(self.weight.shape) == shape, f"its weights are not those of {shape[1]} classes in its sums")

    def __init__(
        self, sums: FeatureSums, random: RandomFeatures | None, choice: Choice, solution: Linear | None = None
    ) -> None:
        super().__init__()
        weight, bias = solution or (torch.zeros(0, 0), torch.zeros(0))
        self.sums = sums
        self.random = random
        self.choice = choice
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor
        self.bias: Tensor

    def expanded(self, features: Tensor) -> Tensor:
        """What the sums are over."""
        return features if self.random is None else self.random(features)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        drawn, total = state_dict.get(f"{prefix}random.drawn"), state_dict.get(f"{prefix}sums.total")
        if drawn is not None and total is not None:
            # Before the random matrix is drawn, whose size is only a number in the file.
            sound = drawn.shape == (3,) and int(drawn[2]) == len(total) and 0 < int(drawn[1]) <= MOST_FEATURES
            self.require(sound, "its random features are not those of its sums")
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def width(self) -> int:
        """How many features it takes."""
        return len(self.weight) if self.random is None else len(self.random.matrix)

    def reads(self, groups: Sequence[int]) -> tuple[bool, ...] | None:
        if self.random is not None or sum(groups) != len(self.weight):
            return None
        return tuple(bool(part.any()) for part in torch.split(self.weight, list(groups)))

    @property
    def class_sums(self) -> Tensor:
        return self.sums.cross

    def forward(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, self.expanded(features.to(self.weight)), self.weight)


class Portion(NamedTuple):
    """Images that were summed elsewhere, and the features of some of them that judge."""

    sums: FeatureSums
    columns: Sequence[int]
    """Where its classes are among all."""
    views: Tensor
    """(V, N, width) features of those that judge."""
    targets: Tensor
    """The columns of their classes."""


class ExactClassifier(Classifier):
    """A linear classifier solved from sums over the images of all classes."""

    flips: bool = False
    """Count the mirror image of an image as another image of its class. Their mean, which ``backbone.mirror`` alone
    takes, needs half the sums and is about as good, with many filters better (docs/exact.md)."""
    random_features: PositiveInt | None = None
    """Size of a fixed random expansion ReLU(f·B) of the features (RanPAC); None: the features themselves."""
    judged: PositiveInt = 1000
    """Images per task that judge rules and temperatures, each left out in turn; their features wait in memory."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.FROZEN_FEATURES})

    @property
    def rules(self) -> Candidates:
        """What is compared."""
        raise TypeError(f"{type(self).__name__} must define rules")

    def empty_state(self) -> ExactScorer:
        random = RandomFeatures() if self.random_features is not None else None
        return ExactScorer(FeatureSums(0), random, Choice(self.rules))

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Scorer:
        return self.update(memory, now, before).scorer

    def update(
        self, memory: ClassGaussians, now: CurrentTask, before: State | None, attempt: HoldoutFitter = no_holdout_fit
    ) -> Fitted:
        known = as_state(before, ExactScorer) or self.begun(now)
        sums = known.sums.copy()
        views, targets = take_in(sums, now, self.flips, self.judged, known.expanded)
        return self._fitted(known, sums, views, targets, now.network)

    def gathered(self, now: FitContext, before: State | None, part: Portion) -> Fitted:
        """As `update`, of images that were summed elsewhere."""
        known = as_state(before, ExactScorer) or self.begun(now)
        sums = known.sums.copy().merge_(part.sums, part.columns)
        return self._fitted(known, sums, part.views.to(now.runtime.device), part.targets, now.network)

    def _fitted(
        self, known: ExactScorer, sums: FeatureSums, views: Tensor, targets: Tensor, network: Network
    ) -> Fitted:
        choice, weighing = copy.deepcopy(known.choice), Weighing(sums, self._groups(network))
        left_out = LeftOut(*choice.observe(weighing, views, targets))
        return Fitted(ExactScorer(sums, known.random, choice, choice.solve(weighing)), left_out)

    def check(self, network: Network, classes: int, runtime: Runtime) -> None:
        width = self.random_features or network.extractor.size

        def setting(most: int) -> str:
            if self.random_features is not None:
                return f"classifier.random_features={most}"
            return network.extractor.trunk.smaller_setting_hint(most)

        check_fits(width, classes, runtime.free_memory, setting, self.judged * (2 if self.flips else 1))

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> ExactScorer:
        assert isinstance(before, ExactScorer)
        sums, choice = before.sums.copy(), before.choice.remap_classes(now.groups)
        if now.removed is not None:
            take_out(sums, now.removed, self.flips, before.expanded)
        sums.regroup_(now.groups)
        return ExactScorer(sums, before.random, choice, choice.solve(Weighing(sums, self._groups(now.network))))

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> ExactScorer:
        assert isinstance(one, ExactScorer)
        assert isinstance(other, ExactScorer)
        if one.random is not None and other.random is not None and not one.random.drawn.equal(other.random.drawn):
            raise DataError("these learners have different random features: make both with the same seed")
        sums, choice = one.sums.copy().merge_(other.sums, columns), one.choice.merged(other.choice, columns)
        return ExactScorer(sums, one.random, choice, choice.solve(Weighing(sums, self._groups(now.network))))

    def _groups(self, network: Network) -> tuple[int, ...]:
        """Sizes of the groups of features that the sums are over."""
        return network.extractor.groups if self.random_features is None else (self.random_features,)

    def begun(self, now: FitContext) -> ExactScorer:
        """What is known before the first task."""
        size, random = now.network.extractor.size, None
        if self.random_features is not None:
            # 63 bits of a seed fit a tensor of whole numbers.
            random = RandomFeatures(now.runtime.seed_for("random features"), size, self.random_features)
        choice = self._choice(self._groups(now.network))
        return ExactScorer(FeatureSums(self.random_features or size), random, choice).to(now.runtime.device)

    def _choice(self, groups: Sequence[int]) -> Choice:
        return Choice(self.rules)


class ExactLDA(ExactClassifier):
    """Linear discriminant analysis: one mean per class, one covariance for all, shrunk as far as the data ask for."""

    kind = "exact_lda"
    shrinkages: Annotated[tuple[Shrinkage, ...], Field(min_length=1)] = SHRINKAGES
    """τ of (1 − τ)Σ + τ·diag Σ that are compared; None: oracle approximating shrinkage, from the sums alone.

    Features come at one deviation within classes, so that diag Σ is the mean(diag Σ)·I of `Discriminant`.
    """
    priors: bool = False
    """Weigh classes by their number of training images; off: all alike."""

    @property
    def rules(self) -> Candidates:
        return [Discriminant(shrinkage, self.priors) for shrinkage in self.shrinkages]


class ExactRidge(ExactClassifier):
    """Ridge regression of one-hot labels on the features of all images ever seen.

    How strong the ridge is, is chosen on arriving images that are left out in turn; what was found in earlier tasks
    counts as well.
    """

    kind = "exact_ridge"
    strengths: tuple[Annotated[PositiveFloat, Field(allow_inf_nan=False)], ...] = STRENGTHS
    """Strengths ν that are compared; the penalty is λ = ν/n after n training images, relative to mean(diag A)."""
    intercept: bool = False
    """Regress centred labels on centred features, so that a constant in the features does not count."""

    @field_validator("strengths")
    @classmethod
    def _some_strengths(cls, strengths: tuple[float, ...]) -> tuple[float, ...]:
        if not strengths:
            raise ValueError("name one strength at least")
        return strengths

    @property
    def rules(self) -> Candidates:
        return [Strength(images, self.intercept) for images in sorted(self.strengths)]


class ExactBest(ExactRidge):
    """Ridge regressions and discriminant analysis of groups of features: whichever answers best for images left out."""

    kind = "exact_best"
    intercept: bool = True
    shrinkages: tuple[Shrinkage, ...] = (None, 0.3, 0.85)
    """Shrinkages of discriminant analyses that are compared with the ridge regressions."""
    group_weights: tuple[Weights, ...] | None = None
    """Weights of the network's groups of features that are compared, e.g. of patches and a pretrained network; not used
    where there is one group."""

    @field_validator("group_weights")
    @classmethod
    def _as_many_each(cls, weights: tuple[Weights, ...] | None) -> tuple[Weights, ...] | None:
        if weights is not None and (not weights or len({len(one) for one in weights}) != 1):
            raise ValueError("give as many weights in each choice as there are groups of features")
        return weights

    @property
    def rules(self) -> Candidates:
        return [*super().rules, *(Discriminant(shrinkage) for shrinkage in self.shrinkages)]

    def _choice(self, groups: Sequence[int]) -> Choice:
        if len(groups) == 1 or self.group_weights is None:
            return Choice(self.rules)
        if len(groups) != len(self.group_weights[0]):
            raise ConfigError(
                f"the network has {len(groups)} groups of features, and classifier.group_weights weighs "
                f"{len(self.group_weights[0])}: give one weight for each group"
            )
        return Choice(self.rules, self.group_weights)
