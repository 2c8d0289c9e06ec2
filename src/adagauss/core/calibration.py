"""Calibration from held-out images: probabilities, prediction sets, and the statistics that they are computed from."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from adagauss.core import linalg
from adagauss.core.config import Part
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.near_duplicates import near_duplicates, sketched, whole_groups
from adagauss.core.ood import (
    BINS,
    MarginScore,
    PValue,
    bin_of,
    margin_score,
    positive,
    smallest_with,
)
from adagauss.core.state import ClassMap, Scorer, State, as_state, column_indices
from adagauss.core.task import CurrentTask
from adagauss.errors import ConfigError

TEMPERATURES = tuple(2.0 ** (power / 2) for power in range(-16, 17))
"""From 1/256, for regressions on one-hot labels, to 256."""
RELATIVE = tuple(2.0 ** (power / 2) for power in range(-12, 5))
"""Temperatures of scores that are divided by their deviation over the classes."""
TEMPERATURE_COUNT = len(TEMPERATURES) + len(RELATIVE)
MIN_DEVIATION = 1e-12


class Calibration(NamedTuple):
    """s / T or, if ``relative``, s / (T·σ), σ the deviation of the scores of an image over the classes."""

    temperature: float = 1.0
    relative: bool = False

    def __call__(self, scores: Tensor) -> Tensor:
        if not self.relative:
            return scores / self.temperature
        centred = scores - scores.mean(1, keepdim=True)
        deviation = centred.square().mean(1, keepdim=True).sqrt().clamp_min(MIN_DEVIATION)
        return scores / (self.temperature * deviation)


def nll(scores: Tensor, targets: Tensor, relative: bool = False) -> tuple[Tensor, Tensor]:
    """(N, T) values of −log p at each temperature, of the true class and of the runner-up.

    With ``relative``, scores are divided by their deviation over the classes, and the temperatures are `RELATIVE`.
    """
    exact = Calibration(1.0, relative)(scores.double())
    # A temperature changes no order: best class and runner-up are found once, for all of them.
    best = exact.topk(min(2, scores.shape[1])).values
    below = exact - best[:, :1]
    true = below.gather(1, targets.to(scores.device).unsqueeze(1))
    runner_up = best[:, -1:] - best[:, :1]
    temperatures = exact.new_tensor(RELATIVE if relative else TEMPERATURES)
    normaliser = torch.stack([torch.div(below, temperature).exp_().sum(1).log() for temperature in temperatures], 1)
    return normaliser - true / temperatures, normaliser - runner_up / temperatures


def best_temperature(true: Tensor, runner_up: Tensor, images: float, relative: bool = False) -> tuple[float, float]:
    """Return the temperature of the lowest negative log-likelihood, from sums of `nll` over images, and that sum.

    One pseudo-image whose true class is the runner-up is added: if all held-out images are classified correctly, the
    likelihood alone would select a temperature of zero. A parabola interpolates log T between the temperatures.
    """
    steps = torch.tensor(RELATIVE if relative else TEMPERATURES, dtype=torch.float64).log()
    total = (true + runner_up / max(images, 1e-9)).double().cpu()
    place = int(total.argmin())
    shift = 0.0
    if 0 < place < len(total) - 1:
        left, middle, right = (float(total[place + step]) for step in (-1, 0, 1))
        curvature = left - 2 * middle + right
        shift = (left - right) / (2 * curvature) if curvature > 0 else 0.0
    step = float(steps[1] - steps[0])
    return float((steps[place] + shift * step).exp()), float(total[place])


CLASS_COUNT_EXPONENT = 4
"""Statistics found among few classes have the weight (classes then / classes now)^4: more classes are confused more."""
MAX_CONFUSIONS = 3
"""Confusions that a summary names."""
MIN_SUMMARY_IMAGES = 10
"""Held-out images of a class below which a summary has no estimates: of 10 correct ones out of 10, the 95 % interval
(Wilson) begins at 72 %, of 2 out of 2 at 34 %."""


@dataclass(frozen=True)
class ClassSummary:
    """Calibration statistics of one class."""

    label: object
    images: int
    """Number of images that were learned."""
    expected_accuracy: float | None
    """Accuracy on its held-out images when they came; None if they are fewer than `MIN_SUMMARY_IMAGES`."""
    confused_with: tuple[tuple[object, float], ...]
    """The classes that most of its images were taken for, and the share; empty if there are too few of them."""
    among: int = 0
    """Number of classes known at that time, a mean over its images: among more, fewer are recognised."""


class CalibrationStats(State):
    """Per class: NLL at each temperature, confusions, and histograms for prediction sets and OOD scores.

    Statistics of all classes together are sums of rows, so that nothing remains of a class that is forgotten. Rows of
    images that the classifier was fitted on (``fitted``) are optimistic and count only without any others.
    ``confusions`` has a row (true class, predicted class, images) for each pair that occurred, in this order.
    """

    dims: ClassVar[Mapping[str, str]] = {
        "learned": "c",
        "images": "c",
        "fitted": "c",
        "among": "c",
        "nll": "ct",
        "runner_up_nll": "ct",
        "score_gaps": "cb",
        "margins": "cb",
        "distances": "cb",
        "atypical": "cb",  # at the quantiles of their time
        "distance_start": "",  # the first of the features whose distances were counted
        "confusions": "q3",
    }

    non_negative = ("learned", "images", "among", "score_gaps", "margins", "distances", "atypical")
    confusions: Tensor

    def __init__(self, classes: int = 0) -> None:
        numbers, likelihoods = torch.zeros(classes, dtype=torch.long), torch.zeros(classes, TEMPERATURE_COUNT).double()
        counts = torch.zeros(classes, BINS, dtype=torch.int32)
        super().__init__(
            **{name: numbers.clone() for name in ("learned", "images", "among")},
            **{name: likelihoods.clone() for name in ("nll", "runner_up_nll")},
            **{name: counts.clone() for name in ("score_gaps", "margins", "distances", "atypical")},
            fitted=torch.zeros(classes, dtype=torch.bool),
            distance_start=torch.zeros((), dtype=torch.long),
            confusions=torch.zeros(0, 3, dtype=torch.int32),
        )

    @property
    def classes(self) -> int:
        return len(self.images)

    def check(self) -> None:
        super().check()
        self.require(self.score_gaps.shape[1] == BINS, "its histograms have another number of bins")
        self.require(self.nll.shape[1] == TEMPERATURE_COUNT, "it has other temperatures")
        self.require(self.confusions.shape[1] == 3, "its confusions are not pairs of classes with a count")
        true, predicted, counts = self.confusions.long().T
        self.require(counts > 0, "it has confusions of no image")
        self.require(
            (self.confusions[:, :2] >= 0) & (self.confusions[:, :2] < self.classes), "unknown confused classes"
        )
        self.require((true * self.classes + predicted).diff() > 0, "its confusions are not in order")
        counted = torch.zeros_like(self.images).index_add_(0, true, counts)
        self.require(counted <= self.images, "it has confusions of more images than it scored")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for old, new in OLD_BUFFERS.items():
            if prefix + old in state_dict:
                state_dict[prefix + new] = state_dict.pop(prefix + old)
        triples = [state_dict.pop(f"{prefix}confusions.{name}", None) for name in ("true", "taken", "counts")]
        if None not in triples:
            state_dict[f"{prefix}confusions"] = torch.stack(triples, 1)
        if (margins := state_dict.get(f"{prefix}margins")) is not None:  # version 0.2.0 has no distances
            for name in ("distances", "atypical"):
                state_dict.setdefault(f"{prefix}{name}", torch.zeros_like(margins))
            state_dict.setdefault(f"{prefix}distance_start", self.distance_start)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def add(self, counts: Tensor) -> None:
        """Count learned images: how many of each class, for all classes known now."""
        self._grow(len(counts))
        self.learned += counts.to(self.learned)

    @torch.no_grad()
    def observe(
        self,
        scores: Tensor,
        targets: Tensor,
        margins: Tensor | None = None,
        distances: Tensor | None = None,
        distance_start: int = 0,
        *,
        left_out: bool = True,
    ) -> None:
        """Add the scores of some images: (N, C) over all classes, with the column of each true class.

        Args:
            scores: outputs of the scorer, not calibrated.
            targets: columns of the true classes.
            margins: see `MarginScore`; None if unavailable.
            distances: see `ClassDistance`; None if unavailable.
            distance_start: first of the features that they compare; distances of other features are dropped.
            left_out: whether the scorer was fitted without these images.
        """
        self._grow(scores.shape[1])
        home = self.images.device
        scores, targets = scores.detach().to(home), targets.to(home)
        usable = torch.isfinite(scores).all(1)
        if not left_out:
            usable &= self.fitted[targets] | (self.images[targets] == 0)
        scores, targets = scores[usable], targets[usable]
        if scores.shape[1] < 2 or len(targets) == 0:
            return  # one class alone is always right
        present = torch.unique(targets)
        if left_out:
            self._clear(present[self.fitted[present]])
        self.fitted[present] = not left_out
        arrived = torch.bincount(targets, minlength=self.classes)
        self.among[present] = _mean_number(self.among, self.images, scores.shape[1], arrived)[present]
        self.images += arrived
        found = [nll(scores, targets), nll(scores, targets, relative=True)]
        self.nll.index_add_(0, targets, torch.cat([true for true, _ in found], 1))
        self.runner_up_nll.index_add_(0, targets, torch.cat([runner_up for _, runner_up in found], 1))
        pairs = torch.stack([targets, scores.argmax(1), torch.ones_like(targets)], 1)
        self.confusions = _summed(torch.cat([self.confusions, pairs.to(self.confusions)]))
        scaled = self.calibration(scores)
        _count(self.score_gaps, targets, scaled.amax(1) - scaled.gather(1, targets.unsqueeze(1)).squeeze(1))
        if distances is not None and int(self.distance_start) != distance_start:
            self.distances.zero_()
            self.atypical.zero_()
            self.distance_start.fill_(distance_start)
        pair = [None if values is None else values.detach().to(home)[usable] for values in (margins, distances)]
        for table, values in zip((self.margins, self.distances), pair, strict=True):
            if values is not None:
                _count(table, targets, values)
        if pair[0] is not None and pair[1] is not None:
            _count(self.atypical, targets, positive(self.p_value.atypicality(pair[0], pair[1])))

    @property
    def calibration(self) -> Calibration:
        """The calibration of the lowest NLL; the identity without any observed image."""
        weights = self._weights()
        total = float((weights * self.images).sum())
        if total == 0:
            return Calibration()
        true, runner_up = weights @ self.nll, weights @ self.runner_up_nll
        split = len(TEMPERATURES)
        plain, plain_nll = best_temperature(true[:split], runner_up[:split], total)
        relative, relative_nll = best_temperature(true[split:], runner_up[split:], total, relative=True)
        # Of two classes, scores divided by their deviation are always ±1 for every image.
        better = relative_nll < plain_nll and self.classes > 2
        return Calibration(relative, True) if better else Calibration(plain, False)

    @property
    def held_out(self) -> bool:
        """Whether all statistics come from held-out images."""
        return bool((self.images > 0).any()) and not bool(self.fitted[self._weights() > 0].any())

    def gap(self, coverage: float) -> float:
        """The largest gap to the best log-probability of classes in a set that contains the true one at this rate.

        Split conformal: the ⌈(n + 1)·coverage⌉-th smallest gap between the best and the true class of n images.
        """
        if not 0 < coverage < 1:
            raise ConfigError(f"coverage must lie between 0 and 1; got {coverage}")
        histogram = self._weights() @ self.score_gaps.double()
        return smallest_with(histogram, coverage, float(histogram.sum()) + 1)

    def sets(self, scores: Tensor, coverage: float) -> Tensor:
        """(N, C) whether each class is in the set; ``scores`` are calibrated. No set is empty."""
        return scores.amax(1, keepdim=True) - scores <= self.gap(coverage)

    @property
    def p_value(self) -> PValue:
        """The p-value of an image under the hypothesis that it shows a known class."""
        weights = self._weights()
        return PValue(*(weights @ table.double() for table in (self.margins, self.distances, self.atypical)))

    def summary(self, labels: Sequence[object]) -> list[ClassSummary]:
        """Summarise each class; ``labels`` are in the order of the columns."""
        confused: list[dict[int, int]] = [{} for _ in range(self.classes)]
        for true, predicted, count in self.confusions.tolist():
            confused[true][predicted] = count
        found = []
        for column, label in enumerate(labels):
            images, others = int(self.images[column]), confused[column]
            hits, enough = others.pop(column, 0), images >= MIN_SUMMARY_IMAGES
            most = sorted(others, key=lambda other: -others[other])[:MAX_CONFUSIONS] if enough else []
            found.append(
                ClassSummary(
                    label,
                    int(self.learned[column]),
                    hits / images if enough and not self.fitted[column] else None,
                    tuple((labels[other], others[other] / images) for other in most),
                    int(self.among[column]),
                )
            )
        return found

    def remap_classes(self, groups: ClassMap) -> Self:
        smaller = type(self)(len(groups)).to(self.images.device)
        before, after = column_indices(groups, self.images.device)
        for name in ROWS:
            merged, rows = smaller.get_buffer(name), self.get_buffer(name)[before]
            if name == "fitted":
                merged.copy_(merged.long().scatter_reduce_(0, after, rows.long(), "amax"))
            elif name == "among":  # the mean over images, rounded down: a part among fewer classes shows
                merged.index_add_(0, after, rows * self.images[before])
            else:
                merged.index_add_(0, after, rows)
        smaller.among //= smaller.images.clamp_min(1)
        places = torch.full((self.classes,), -1, device=self.images.device)
        places[before] = after
        smaller.distance_start = self.distance_start.clone()
        smaller.confusions = _moved(self.confusions, places)
        return smaller

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        both = type(self)(self.classes).to(self.images.device)
        both.load_state_dict(self.state_dict())
        both._grow(max(self.classes, 1 + max(columns, default=-1)))
        there = copy.deepcopy(other).to(both.images.device)
        places = torch.tensor(columns, dtype=torch.long, device=both.images.device)
        both.among[places] = _mean_number(both.among[places], both.images[places], there.among, there.images)
        for name in ROWS:
            if name != "among" and (
                name not in ("distances", "atypical") or self.distance_start == there.distance_start
            ):
                both.get_buffer(name)[places] += there.get_buffer(name)
        both.confusions = _summed(torch.cat([both.confusions, _moved(there.confusions, places)]))
        return both

    def _weights(self) -> Tensor:
        """(C,) the weight of each class."""
        usable = self.images > 0
        left_out = usable & ~self.fitted
        usable = left_out if bool(left_out.any()) else usable
        return usable * (self.among.double() / max(1, self.classes)) ** CLASS_COUNT_EXPONENT

    def _grow(self, classes: int) -> None:
        new = classes - self.classes
        if new > 0:
            for name in ROWS:
                rows = self.get_buffer(name)
                setattr(self, name, F.pad(rows, (0, new) if rows.ndim == 1 else (0, 0, 0, new)))

    def _clear(self, columns: Tensor) -> None:
        """Drop the statistics of fitted images, which held-out images replace."""
        for name in ROWS:
            if name != "learned":
                self.get_buffer(name)[columns] = 0
        self.confusions = self.confusions[~torch.isin(self.confusions[:, 0], columns.to(self.confusions))]


ROWS = tuple(name for name, letters in CalibrationStats.dims.items() if letters[:1] == "c")
"""Buffers with a row per class."""
OLD_BUFFERS = {"surprise": "nll", "second": "runner_up_nll", "gaps": "score_gaps", "typical": "margins"}
"""Buffers of version 0.2.0 and their present names."""


def _summed(confusions: Tensor) -> Tensor:
    """Add up rows of the same pair, sorted by true class, then by predicted class."""
    pairs, rows = torch.unique(confusions[:, 0].long() * 2**31 + confusions[:, 1], return_inverse=True)
    counts = torch.zeros_like(pairs).index_add_(0, rows, confusions[:, 2].long())
    return torch.stack([pairs // 2**31, pairs % 2**31, counts], 1).to(confusions)


def _moved(confusions: Tensor, places: Tensor) -> Tensor:
    """Confusions after each class moved to another column; −1 drops it."""
    pairs = places[confusions[:, :2].long()].to(confusions)
    return _summed(torch.cat([pairs, confusions[:, 2:]], 1)[(pairs >= 0).all(1)])


def _mean_number(numbers: Tensor, images: Tensor, more: Tensor | int, more_images: Tensor) -> Tensor:
    """The mean number of classes over all images: a few new images must not make the old statistics new."""
    total = numbers * images + more * more_images
    return (total / (images + more_images).clamp_min(1)).round().long()


def _count(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Count values in the histograms of these rows."""
    table.index_put_((rows, bin_of(values)), torch.ones_like(rows, dtype=table.dtype), accumulate=True)


class HeldOutScores(NamedTuple):
    """Scores of held-out images of the current task: the scorer was fitted without them."""

    scores: Tensor
    """(N, C), over all classes and on the scale of the scorer that was returned."""
    targets: Tensor
    """The column of each image's class."""
    distances: Tensor | None = None
    """(N,) see `ClassDistance`."""
    distance_start: int = 0
    """The first of the features that the distances compare."""


class Fitted(NamedTuple):
    """A scorer and, if the classifier computes them itself (leave-one-out), held-out scores."""

    scorer: Scorer
    left_out: HeldOutScores | None = None
    warning: str | None = None


Share = Annotated[float, Field(ge=0, lt=1)]
MIN_FIT_IMAGES = 2
"""Images of a class that are never held out: fewer have no covariance."""
MAX_SCORED = 2000
"""Training images of a task that are scored if none are held out."""


class Holdout(Part):
    """Holdout split used for calibration; its statistics add up over tasks.

    Memory and classifier are fitted without the held-out images first, and with all images afterwards. A classifier
    with closed-form leave-one-out scores needs no split. If a network is trained and no images are held out, training
    images are scored: these scores are optimistic, and `CalibrationStats` marks them as fitted.
    """

    role: ClassVar[str] = "evidence"
    kind = "left_out"
    share: Share = 0.1
    """Share of the images that memory and classifier are first fitted without, in tasks that train no network."""
    train_holdout: Share = 0.0
    """Share of the images that the network is not trained on; memory and classifier use them afterwards. Methods that
    train a network are calibrated only with such a split."""

    def empty_state(self) -> CalibrationStats:
        return CalibrationStats()

    def part(self, now: CurrentTask, share: float) -> CurrentTask:
        """A task without this share of the images of each class, or the task itself if there are too few."""
        if not share:
            return now
        groups = now.data.groups
        if groups is None:
            groups = near_duplicates(sketched(now.features()), now.data.targets)
        kept = holdout_mask(now.data.targets, share, now.runtime.generator(now.name, "left out"), groups)
        return now if bool(kept.all()) else now.part(kept.nonzero().flatten())

    def update(
        self, before: State | None, now: CurrentTask, memory: ClassGaussians, scorer: Scorer, scored: CurrentTask | None
    ) -> CalibrationStats:
        """Return the calibration statistics after a task.

        Args:
            before: those of the previous task.
            now: the task, with all its images.
            memory: the memory after the task, or without the held-out images.
            scorer: the scorer that was fitted to this memory.
            scored: the held-out images; None: training images are scored.
        """
        stats, left_out = self._copy(before, now.column_counts), scored is not None
        if scored is None:
            order = torch.randperm(len(now.data), generator=now.runtime.generator(now.name, "asked"))
            scored = now.part(order[:MAX_SCORED])
        features = scored.prediction_features()
        with torch.no_grad():
            scores = linalg.by_rows(scorer, features)
            margins = MarginScore.of(memory, scorer.power)(features, scores)
        stats.observe(scores, scored.column_targets, margins, left_out=left_out)
        return stats

    def update_from_scores(self, before: State | None, counts: Tensor, left_out: HeldOutScores) -> CalibrationStats:
        """Return the calibration statistics after a task of ``counts`` images per class, some with held-out scores."""
        stats = self._copy(before, counts)
        stats.observe(left_out.scores, left_out.targets, margin_score(left_out.scores), *left_out[2:])
        return stats

    def _copy(self, before: State | None, counts: Tensor) -> CalibrationStats:
        known = as_state(before, CalibrationStats)
        stats = copy.deepcopy(known) if known is not None else CalibrationStats().to(counts.device)
        stats.add(counts)
        return stats


def holdout_mask(targets: Tensor, share: float, generator: torch.Generator, groups: Tensor | None = None) -> Tensor:
    """A mask that is false for about ``share`` of the images of each class, in whole groups: one of enough at least."""
    mask = torch.ones(len(targets), dtype=torch.bool)
    if share:
        for target in torch.unique(targets).tolist():
            members = (targets == target).nonzero().flatten()
            number, most = max(1, round(share * len(members))), len(members) - MIN_FIT_IMAGES
            order = torch.randperm(len(members), generator=generator)
            own = torch.arange(len(members)) if groups is None else groups[members]
            mask[members[whole_groups(order, own, min(number, most), most)]] = False
    return mask
