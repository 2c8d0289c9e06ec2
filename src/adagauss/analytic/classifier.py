"""Analytic classifiers: ridge regression and LDA of all images seen, solved from streaming moments.

With fixed features the moments do not depend on the order of the classes or on how they are grouped into tasks. With
the same regularisation, neither does the solution; the regularisation is selected by leave-one-out on arriving images.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator
from torch import Tensor

from adagauss.analytic.moments import Linear, MomentSums, check_fits, diagonal
from adagauss.analytic.ridge_lda import LDA, Ridge
from adagauss.analytic.selection import STRENGTHS, ModelSelection, Rule, Standardizer
from adagauss.backbones import Network
from adagauss.core.calibration import Fitted, HeldOutScores
from adagauss.core.config import Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.near_duplicates import group_sizes, near_duplicates, sketched, whole_groups
from adagauss.core.ood import left_out_distances
from adagauss.core.state import Scorer, State, as_state
from adagauss.core.task import ClassEdit, CurrentTask, FitContext, divided_batches
from adagauss.data.images import Label, LabelledImages
from adagauss.distributed.processes import Sharding
from adagauss.errors import ConfigError, DataError
from adagauss.parts.classifiers import Classifier
from adagauss.utils.runtime import Runtime


class RandomFeatures(State):
    """ReLU(f·B), B Gaussian and fixed (RanPAC). B is not saved but drawn again from its seed.

    The sum of B is saved, to detect a torch release that draws different numbers from the same seed.
    """

    dims: ClassVar[Mapping[str, str]] = {"drawn": "d", "total": ""}

    def __init__(self, seed: int = 0, features: int = 0, size: int = 0) -> None:
        super().__init__(drawn=torch.tensor([seed, features, size]), total=torch.zeros((), dtype=torch.float64))
        self.register_buffer("matrix", torch.zeros(0, 0), persistent=False)
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


logger = logging.getLogger(__name__)

SAME_EACH, SAME_ALL = 1e-4, 0.1
"""Two sums are of the same images if they differ by less than this share of each image, or of one image."""
LOST = 1e-3
"""Share of the squared length of an image that rounding may remove from a direction, or `SAME_EACH` of every removed
image if that is more. Removing 15 of 150 photographs took less than 1e-6; one that was never added takes 0.16."""
TELLING = 2
"""Images per feature up to which images that were never added can be detected."""
MOST_NAMED = 5
"""Largest number of classes named in a warning."""


class Sample(NamedTuple):
    """Images for leave-one-out model selection and calibration."""

    features: Tensor
    targets: Tensor
    """The score column of the class of each."""
    groups: Tensor
    """Images of one group are left out together."""
    grouped_by: str = LabelledImages.grouped_by
    """The relation of the images of one group, for messages."""


Expansion = Callable[[Tensor], Tensor]
"""Maps features to the inputs of the moments."""


def add_task(sums: MomentSums, now: CurrentTask, loo_images: int, expanded: Expansion) -> Sample:
    """Add the current images to the sums; return a random sample of about ``loo_images``, in whole groups.

    Several processes sum over their share of the images each, and then add the sums up.
    """
    columns, classes = torch.tensor(now.columns), len(now.all_classes)
    before = (sums.cross.clone(), sums.counts.clone())
    sampled = torch.zeros(len(now.data), dtype=torch.bool)
    order = torch.randperm(len(now.data), generator=now.runtime.generator(now.name, "judges"))
    sampled[order[:loo_images]] = True
    processes, start = now.runtime.processes, sum(now.network.extractor.groups[:-1])
    own = sums if processes.alone else MomentSums(sums.width, classes).to(now.runtime.device)
    waiting, sketches = [torch.zeros(0, sums.width, device=now.runtime.device)], []
    for rows, features in now.blocks(divided=True):
        inputs = expanded(features)
        own.add_(inputs, columns[now.data.targets[rows]], classes)
        waiting.append(inputs[sampled[rows]])
        sketches.append(sketched(features[:, start:]))
    if own is not sums:
        for buffer in own.buffers():
            processes.sum_(buffer)
        sums.merge_(own)
    _warn_of_repeats(sums, now, *before)
    division = divided_batches(now.data.images, now.runtime)
    held = Sharding(division.owners[sampled], processes).all_gather(torch.cat(waiting))
    if (groups := now.data.groups) is None:
        groups = near_duplicates(division.all_gather(torch.cat(sketches)), now.data.targets)
    groups = groups * len(now.classes) + now.data.targets  # a group is of one class
    chosen = whole_groups(order, groups, loo_images, 2 * loo_images).sort().values
    others, features = ~sampled[chosen], held.new_empty(len(chosen), sums.width)
    features[~others] = held[(sampled.cumsum(0) - 1)[chosen[~others]]]
    if bool(others.any()):  # of the same groups
        features[others] = expanded(now.part(chosen[others]).prediction_features())
    return Sample(features, columns[now.data.targets[chosen]], groups[chosen], now.data.grouped_by)


def remove_task(sums: MomentSums, now: CurrentTask, expanded: Expansion) -> None:
    """Remove images that were added.

    Of a class whose images are all given, nothing must be left in its sum. Where only some are given, what is left must
    still be a sum of squares, which it is not without a direction that only other images have; among many more images
    than features there is none, and this is not looked at. If the check fails, these
    are different images, and removing them would corrupt the sums.
    """
    columns, given = torch.tensor(now.columns), now.data.counts()
    there = sums.counts[columns.to(sums.counts.device)].cpu()
    for label, number, known in zip(now.classes, given.tolist(), there.tolist(), strict=True):
        if number > known:
            raise DataError(
                f"class {label!r} was learned from {known} images, but {number} are to be removed. Give only "
                "images that it was learned from"
            )
    size, images, squares = _length(sums), int(sums.images), diagonal(sums.strips())
    for rows, features in now.blocks():
        sums.remove_(expanded(features), columns[now.data.targets[rows]])
    left = (there - given).tolist()
    for label, column, number, known in zip(now.classes, now.columns, left, there.tolist(), strict=True):
        rest = float(sums.cross[:, column].norm())
        if not number and rest > size * max(SAME_ALL, SAME_EACH * known):
            raise _others(label)
    some = [row for row, number in enumerate(left) if number]
    amount = max(LOST, SAME_EACH * int(given.sum())) * size**2
    if some and sums.images <= TELLING * sums.width and not sums.holds(amount):
        raise _others(*(now.classes[row] for row in some))
    sums.clear_(squares, images)
    for row in some:
        logger.warning(
            "class %r was learned from %d images, and %d are given: of the others, the scatter about their mean "
            "stays in the sums",
            now.classes[row],
            there[row],
            given[row],
        )


def _others(*labels: Label) -> DataError:
    return DataError(
        f"these are not the images that class {' or '.join(map(repr, labels))} was learned from, so they cannot be "
        "removed. Give the same files, or no files to remove only their mean and count"
    )


def _warn_of_repeats(sums: MomentSums, now: CurrentTask, cross: Tensor, counts: Tensor) -> None:
    """Say so if known classes were given the very images that they were learned from."""
    repeated, size = [], _length(sums)
    for label, column in zip(now.classes, now.columns, strict=True):
        number = int(counts[column]) if column < len(counts) else 0
        times, rest = divmod(number, max(1, int(sums.counts[column]) - number))
        if times and not rest:
            difference = cross[:, column] - times * (sums.cross[:, column] - cross[:, column])
            repeated += [repr(label)] if float(difference.norm()) <= size * SAME_EACH * number else []
    if repeated:
        logger.warning(
            "the images of class %s seem to have been learned before: each counts again now. If that is a mistake, "
            "forget these classes (if they are all, delete the model file) and teach them once",
            _named(repeated),
        )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (" ..." if len(names) > MOST_NAMED else "")


def _length(sums: MomentSums) -> float:
    """Length of the features of an image: the root of the mean of its square."""
    return math.sqrt(float(sums.mean_square().sum()))


MOST_FEATURES = 2**16
"""Largest number of features of a network that a file may name."""
Weights = tuple[NonNegativeFloat, ...]
Shrinkage = Annotated[float, Field(ge=0, le=1)] | None


class AnalyticScorer(Scorer):
    """xW + b with x the features or random features of them, what W and b were solved from, and by which rule."""

    dims: ClassVar[Mapping[str, str]] = {"weight": "ec", "bias": "c"}

    def check(self) -> None:
        """Raise a `DataError` if the weights do not belong to the sums."""
        super().check()
        shape = (self.sums.width, self.sums.classes)
        self.require(tuple(self.weight.shape) == shape, f"its weights are not those of {shape[1]} classes in its sums")

    def __init__(
        self, sums: MomentSums, random: RandomFeatures | None, choice: ModelSelection, solution: Linear | None = None
    ) -> None:
        weight, bias = solution or (None, None)
        super().__init__(weight=weight, bias=bias)
        self.sums = sums
        self.random = random
        self.choice = choice

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
        inputs = features.to(self.weight)
        return torch.addmm(self.bias, inputs if self.random is None else self.random(inputs), self.weight)


class AnalyticClassifier(Classifier):
    """A linear classifier solved from sums over the images of all classes: the best of ridge regressions and LDAs.

    Leave-one-out on arriving images selects the rule and the weights of the features; results of earlier tasks count
    as well.
    """

    kind = "closed_form"
    strengths: tuple[Annotated[PositiveFloat, Field(allow_inf_nan=False)], ...] = STRENGTHS
    """Strengths ν of ridge regressions that are compared; the penalty is λ = ν/n after n training images, relative to
    mean(diag A)."""
    intercept: bool = True
    """Regress centred labels on centred features, so that a constant in the features does not count."""
    shrinkages: tuple[Shrinkage, ...] = ()
    """τ of (1 − τ)Σ + τ·diag Σ of discriminant analyses that are compared as well; None: oracle approximating.

    Features come at one deviation within classes, so that diag Σ is the mean(diag Σ)·I of `LDA`.
    """
    group_weights: tuple[Weights, ...] | None = None
    """Weights of the network's groups of features that are compared, e.g. of patches and a pretrained network; not used
    where there is one group."""
    random_features: PositiveInt | None = None
    """Size of a fixed random expansion ReLU(f·B) of the features (RanPAC); None: the features themselves."""
    loo_images: PositiveInt = 1000
    """Images per task used for leave-one-out model selection and calibration; their features are held in memory."""

    @field_validator("group_weights")
    @classmethod
    def _as_many_each(cls, weights: tuple[Weights, ...] | None) -> tuple[Weights, ...] | None:
        if weights is not None and (not weights or len({len(one) for one in weights}) != 1):
            raise ValueError("give as many weights in each choice as there are groups of features")
        return weights

    @model_validator(mode="after")
    def _some_rule(self) -> Self:
        if not self.rules:
            raise ValueError("name at least one of classifier.strengths and classifier.shrinkages")
        return self

    @property
    def rules(self) -> list[Rule]:
        """What is compared."""
        ridges = [Ridge(images, self.intercept) for images in sorted(self.strengths)]
        return [*ridges, *(LDA(shrinkage) for shrinkage in self.shrinkages)]

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.FROZEN_FEATURES})

    def empty_state(self) -> AnalyticScorer:
        random = RandomFeatures() if self.random_features is not None else None
        return AnalyticScorer(MomentSums(0), random, ModelSelection(self.rules))

    def fit(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Scorer:
        return self.update(memory, now, before).scorer

    def update(self, memory: ClassGaussians, now: CurrentTask, before: State | None) -> Fitted:
        known = as_state(before, AnalyticScorer) or self.initial(now)
        sums = known.sums.copy()
        sample = add_task(sums, now, self.loo_images, known.expanded)
        return self.fitted(known, sums, sample, now, now.all_classes)

    def fitted(
        self, known: AnalyticScorer, sums: MomentSums, sample: Sample, now: FitContext, labels: Sequence[Label]
    ) -> Fitted:
        """The scorer of new sums, selected by a sample of the new images; ``labels`` are those of its columns."""
        choice, groups = copy.deepcopy(known.choice), self.feature_groups(now.network)
        weighing = Standardizer(sums, groups)
        scores, others = choice.observe(weighing, *sample[:3])
        scorer = AnalyticScorer(sums, known.random, choice, choice.solve(weighing))
        last = max((index for index, read in enumerate(scorer.reads(groups) or ()) if read), default=len(groups) - 1)
        part = slice(start := sum(groups[:last]), start + groups[last])
        features, columns, together = (one[others] for one in sample[:3])
        sizes = group_sizes(sample.groups)
        distances = left_out_distances(features[:, part], columns.to(features.device), together, sums.cross[part])
        alone = [repr(labels[column]) for column in torch.unique(sample.targets[~others & (sizes > 1)]).tolist()]
        warning = (
            f"all images of class {_named(alone)} are {sample.grouped_by}, so its accuracy cannot be estimated. Add "
            "images of other objects"
        )
        return Fitted(scorer, HeldOutScores(scores, columns, distances, start), warning if alone else None)

    def check(self, network: Network, classes: int, runtime: Runtime) -> None:
        expands = self.random_features is not None
        setting = "classifier.random_features" if expands else network.extractor.trunk.size_setting
        width = self.random_features or network.extractor.size
        check_fits(width, classes, runtime.free_memory, setting, self.loo_images)

    def remap_classes(self, memory: ClassGaussians, now: ClassEdit, before: Scorer) -> AnalyticScorer:
        assert isinstance(before, AnalyticScorer)
        sums, choice = before.sums.copy(), before.choice.remap_classes(now.groups)
        if now.removed is not None:
            remove_task(sums, now.removed, before.expanded)
        sums.regroup_(now.groups)
        return self._solved(sums, before.random, choice, now)

    def merged(
        self, memory: ClassGaussians, now: FitContext, one: Scorer, other: Scorer, columns: tuple[int, ...]
    ) -> AnalyticScorer:
        assert isinstance(one, AnalyticScorer)
        assert isinstance(other, AnalyticScorer)
        if one.random is not None and other.random is not None and not one.random.drawn.equal(other.random.drawn):
            raise DataError("these learners have different random features: make both with the same seed")
        sums, choice = one.sums.copy().merge_(other.sums, columns), one.choice.merged(other.choice, columns)
        return self._solved(sums, one.random, choice, now)

    def _solved(
        self, sums: MomentSums, random: RandomFeatures | None, choice: ModelSelection, now: FitContext
    ) -> AnalyticScorer:
        return AnalyticScorer(sums, random, choice, choice.solve(Standardizer(sums, self.feature_groups(now.network))))

    def feature_groups(self, network: Network) -> tuple[int, ...]:
        """Sizes of the groups of features that the sums are over."""
        return network.extractor.groups if self.random_features is None else (self.random_features,)

    def initial(self, now: FitContext) -> AnalyticScorer:
        """The scorer before the first task."""
        size, random = now.network.extractor.size, None
        if self.random_features is not None:
            # 63 bits of a seed fit a tensor of whole numbers.
            random = RandomFeatures(now.runtime.seed_for("random features"), size, self.random_features)
        groups, weights = self.feature_groups(now.network), self.group_weights
        if len(groups) == 1 or weights is None:
            weights = ((1.0,),)
        elif len(groups) != len(weights[0]):
            raise ConfigError(
                f"the network has {len(groups)} groups of features, and classifier.group_weights weighs "
                f"{len(weights[0])}: give one weight for each group"
            )
        choice = ModelSelection(self.rules, weights)
        return AnalyticScorer(MomentSums(self.random_features or size), random, choice).to(now.runtime.device)
