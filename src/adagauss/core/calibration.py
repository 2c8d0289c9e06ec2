"""Calibration: probabilities, prediction sets and out-of-distribution scores from held-out images."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from adagauss.core import linalg
from adagauss.core.config import Part
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import by_rows, oas_shrinkage
from adagauss.core.state import ClassMap, Scorer, State, as_state, column_indices
from adagauss.core.task import CurrentTask
from adagauss.errors import ConfigError

TEMPERATURES = tuple(2.0 ** (power / 2) for power in range(-16, 17))
"""From 1/256, for regressions on one-hot labels, whose scores a softmax makes too equal, to 256."""
RELATIVE = tuple(2.0 ** (power / 2) for power in range(-12, 5))
"""Temperatures of scores that are divided by their deviation over the classes."""
LEAST_DEVIATION = 1e-12


class Calibration(NamedTuple):
    """What scores are divided by before a softmax: a temperature, times their own deviation if ``relative``.

    The order of the classes stays what it is.
    """

    temperature: float = 1.0
    relative: bool = False

    def __call__(self, scores: Tensor) -> Tensor:
        return calibrated(scores, self.temperature, float(self.relative))


def calibrated(scores: Tensor, temperature: float | Tensor, power: float | Tensor) -> Tensor:
    """s / (T·σᵖ), σ the deviation of the scores of an image over the classes, p = 0 or 1."""
    centred = scores - scores.mean(1, keepdim=True)
    deviation = centred.square().mean(1, keepdim=True).sqrt().clamp_min(LEAST_DEVIATION)
    return scores / (temperature * deviation**power)


def nll(scores: Tensor, targets: Tensor, relative: bool = False) -> tuple[Tensor, Tensor]:
    """(N, T) values of −log p at each temperature: p of the right class, and p of the runner-up.

    With ``relative``, scores are divided by their deviation over the classes first, and `RELATIVE` are tried.
    """
    exact = calibrated(scores.double(), 1.0, 1.0) if relative else scores.double()
    # A temperature changes no order: best class and runner-up are found once, for all of them.
    best = exact.topk(min(2, scores.shape[1])).values
    below = exact - best[:, :1]
    right = below.gather(1, targets.to(scores.device).unsqueeze(1))
    second = best[:, -1:] - best[:, :1]
    temperatures = exact.new_tensor(RELATIVE if relative else TEMPERATURES)
    normaliser = torch.stack([torch.div(below, temperature).exp_().sum(1).log() for temperature in temperatures], 1)
    return normaliser - right / temperatures, normaliser - second / temperatures


def best_temperature(right: Tensor, second: Tensor, images: float, relative: bool = False) -> tuple[float, float]:
    """The temperature of the lowest negative log-likelihood, from sums of `nll` over images, and that sum.

    One pseudo-image whose true class is the runner-up is added: if all held-out images are classified correctly, the
    likelihood alone would select a temperature of zero. A parabola interpolates log T between the temperatures tried.
    """
    steps = torch.tensor(RELATIVE if relative else TEMPERATURES, dtype=torch.float64).log()
    total = (right + second / max(images, 1e-9)).double().cpu()
    place = int(total.argmin())
    shift = 0.0
    if 0 < place < len(total) - 1:
        left, middle, after = (float(total[place + step]) for step in (-1, 0, 1))
        curvature = left - 2 * middle + after
        shift = (left - after) / (2 * curvature) if curvature > 0 else 0.0
    step = float(steps[1] - steps[0])
    return float((steps[place] + shift * step).exp()), float(total[place])


LOWEST, DECADES, PER_DECADE = 1e-4, 9, 32
BINS = DECADES * PER_DECADE + 2
"""The first bin holds what is below `LOWEST`, the last what is above all others."""


def bin_of(values: Tensor) -> Tensor:
    """The bin of each value, 0 to `BINS` − 1."""
    steps = (values.double().clamp_min(LOWEST / 10) / LOWEST).log10() * PER_DECADE
    return (steps.clamp_max(BINS).floor().long() + 1).clamp(0, BINS - 1)


def upper_edge(place: int) -> float:
    """Where a bin ends."""
    return math.inf if place >= BINS - 1 else LOWEST * 10 ** (place / PER_DECADE)


def smallest_with(histogram: Tensor, share: float, total: float) -> float:
    """The smallest bin edge below which ``share`` of ``total`` lies; infinite if there is not so much."""
    enough = (histogram.cumsum(0) >= share * total - 1e-9).nonzero()
    return upper_edge(int(enough[0])) if len(enough) else math.inf


def largest_with(histogram: Tensor, share: float, total: float) -> float:
    """The largest bin edge below which no more than ``share`` of ``total`` lies."""
    few = int((histogram.cumsum(0) <= share * total + 1e-9).sum())
    return upper_edge(few - 1) if few else 0.0


def share_above(histogram: Tensor, values: Tensor, total: float) -> Tensor:
    """For each value, the share of ``total`` that is larger; a bin is taken to be filled evenly."""
    places = bin_of(values)
    above = histogram.flip(0).cumsum(0).flip(0)
    beyond = torch.cat([above[1:], above.new_zeros(1)])
    within = 1 - ((values.double().clamp_min(LOWEST) / LOWEST).log10() * PER_DECADE - (places - 1)).clamp(0, 1)
    return (beyond[places] + within * histogram[places]) / total


class Confusions(State):
    """How many images of each class were taken for which (their own included), as triples (true, taken, count).

    Each pair of classes with a count above zero has one triple; they are sorted by ``true``, then by ``taken``. So n
    images of C classes take 12·min(n, C²) bytes at the most, where a table takes 4·C².
    """

    dims: ClassVar[Mapping[str, str]] = {"true": "q", "taken": "q", "counts": "q"}
    contents: ClassVar[str] = "how many images of each class were taken for which"

    def __init__(self) -> None:
        super().__init__()
        for name in self.dims:
            self.register_buffer(name, torch.zeros(0, dtype=torch.int32))
        self.true: Tensor
        self.taken: Tensor
        self.counts: Tensor

    @classmethod
    def of_table(cls, table: Tensor) -> Self:
        """From the counts of all pairs, (C, C)."""
        found = cls()
        true, taken = table.nonzero(as_tuple=True)
        found.true, found.taken, found.counts = true.int(), taken.int(), table[true, taken].int()
        return found

    def check(self) -> None:
        """Raise a `DataError` if these cannot be counts of pairs."""
        super().check()
        self.require(self.counts > 0, "it holds counts of no image")
        self.require((self.true >= 0) & (self.taken >= 0), "it holds counts of no class")
        self.require(_keys(self.true, self.taken).diff() > 0, "its pairs are not in order")

    @property
    def classes(self) -> int:
        """How many classes there are at least."""
        return 1 + int(torch.maximum(self.true, self.taken).max()) if len(self.counts) else 0

    def add(self, true: Tensor, taken: Tensor, counts: Tensor | None = None) -> None:
        """Count further images: one of each pair, or ``counts`` of each."""
        counts = torch.ones_like(true) if counts is None else counts
        keys = torch.cat([_keys(self.true, self.taken), _keys(true, taken)])
        pairs, places = torch.unique(keys, return_inverse=True)
        summed = torch.zeros_like(pairs).index_add_(0, places, torch.cat([self.counts.long(), counts.long()]))
        self.true, self.taken, self.counts = (pairs // BASE).int(), (pairs % BASE).int(), summed.int()

    def drop(self, columns: Tensor) -> None:
        """Leave out what images of some classes were taken for."""
        kept = ~torch.isin(self.true, columns.to(self.true))
        self.true, self.taken, self.counts = self.true[kept], self.taken[kept], self.counts[kept]

    def images(self, classes: int) -> Tensor:
        """(C,) of how many images of each class it is known what they were taken for."""
        found = torch.zeros(classes, dtype=torch.long, device=self.counts.device)
        return found.index_add_(0, self.true.long(), self.counts.long())

    def rows(self, classes: int) -> list[dict[int, int]]:
        """For each class, what its images were taken for and how many."""
        found: list[dict[int, int]] = [{} for _ in range(classes)]
        for true, taken, count in zip(self.true.tolist(), self.taken.tolist(), self.counts.tolist(), strict=True):
            found[true][taken] = count
        return found

    def remap_classes(self, groups: ClassMap) -> Self:
        home = self.counts.device
        before, after = column_indices(groups, home)
        places = torch.full((max(self.classes, int(before.max()) + 1 if len(before) else 0),), -1, device=home)
        places[before] = after
        true, taken = places[self.true.long()], places[self.taken.long()]
        kept = (true >= 0) & (taken >= 0)
        fewer = type(self)().to(home)
        fewer.add(true[kept], taken[kept], self.counts[kept])
        return fewer

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        home = self.counts.device
        places = torch.tensor(columns, dtype=torch.long, device=home)
        both = type(self)().to(home)
        both.add(self.true, self.taken, self.counts)
        both.add(places[other.true.to(places)], places[other.taken.to(places)], other.counts.to(home))
        return both


BASE = 2**31
"""More than any column, which are int32."""


def _keys(true: Tensor, taken: Tensor) -> Tensor:
    """One number for each pair, in their order."""
    return true.long() * BASE + taken.long()


RUNNERS_UP = 10


def margin_score(scores: Tensor) -> Tensor:
    """The best score less the mean of the next `RUNNERS_UP`: how much better one class explains an image than others.

    It does not depend on what all scores have in common, such as how far an image is from everything in directions
    that tell no classes apart.
    """
    if scores.shape[1] < 2:
        return torch.zeros_like(scores[:, 0])
    best = scores.topk(min(1 + RUNNERS_UP, scores.shape[1])).values
    return best[:, 0] - best[:, 1:].mean(1)


def discriminants(means: Tensor, counts: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
    """(S, C) weights Σ⁻¹(μ_c − m) and biases −½(μ_c + m)ᵀΣ⁻¹(μ_c − m), m the mean of the means.

    Σ is the covariance ``within`` classes, shrunk by the oracle approximating shrinkage. The scores are
    log-likelihood ratios of each class against one at m with the same covariance.
    """
    scale = linalg.mean_diagonal(within)
    size, trace, square = len(within), float(within.trace()), float(within.square().sum())
    shrinkage = oas_shrinkage(trace, square, size, int(counts.sum()))
    identity = torch.eye(size, dtype=within.dtype, device=within.device)
    factor = linalg.safe_cholesky((1 - shrinkage) * within + shrinkage * scale * identity).factor
    centre = means.mean(0)
    weight = torch.cholesky_solve((means - centre).T, factor)
    bias = -((means + centre).T * weight).sum(0) / 2
    return weight, bias


class MarginScore(nn.Module):
    """Features and scores to how typical the image is of what is known, 0 and above.

    Where covariances are remembered, the scores of a discriminant analysis with their mean take the place of the
    classifier's: distances with a covariance for each class tell unknown images worse (docs/confidence.md).
    """

    def __init__(self, weight: Tensor | None = None, bias: Tensor | None = None, power: float | None = None) -> None:
        super().__init__()
        self.power = power
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.weight: Tensor | None
        self.bias: Tensor | None

    @classmethod
    def of(cls, memory: ClassGaussians, power: float | None = None) -> MarginScore:
        """From what is remembered; ``power`` is that of Tukey's transform, if covariances are those of f^λ."""
        if memory.covariance == "none" or len(memory) < 2 or not bool((memory.counts > 1).any()):
            return cls()
        means = memory.means if power is None else memory.means.clamp_min(0).pow(power)
        weight, bias = discriminants(means, memory.counts, memory.pooled)
        return cls(weight.float().contiguous(), bias.float(), power)

    def forward(self, features: Tensor, scores: Tensor) -> Tensor:
        if self.weight is not None and self.bias is not None:
            points = features[:, : len(self.weight)]  # features of a companion come after those that are remembered
            points = points if self.power is None else points.clamp_min(0).pow(self.power)
            scores = torch.addmm(self.bias, points.to(self.weight), self.weight)
        return margin_score(scores)


CLASS_COUNT_EXPONENT = 4
"""Evidence found among few classes counts (classes then / classes now)^4: of more classes, more are confused."""
NEAREST = 3
"""Confusions that a summary names."""


@dataclass(frozen=True)
class ClassSummary:
    """Calibration statistics of one class."""

    label: object
    images: int
    """How many were learned."""
    expected_accuracy: float | None
    """Share of its images that were recognised while left out, when they came; None where none was left out."""
    confused_with: tuple[tuple[object, float], ...]
    """The classes that most of its images were taken for, and the share."""
    among: int = 0
    """How many classes were known then, as a mean over its images: among more, fewer are recognised."""


class CalibrationStats(State):
    """Per class: NLL at each temperature, confusions, and histograms for prediction sets and OOD scores.

    Statistics of all classes together are sums of rows, so that nothing remains of a class that is forgotten. Rows of
    images that the classifier was fitted on (``fitted``) are optimistic and count only if there are no others.
    """

    dims: ClassVar[Mapping[str, str]] = {
        "learned": "c",
        "images": "c",
        "fitted": "c",
        "among": "c",
        "surprise": "ct",
        "second": "ct",
        "gaps": "cb",
        "typical": "cb",
    }
    contents: ClassVar[str] = "counts and histograms of the scores of held-out images of each class"

    def __init__(self, classes: int = 0) -> None:
        super().__init__()
        for name, width, dtype in _ROWS:
            shape = (classes,) if width == 0 else (classes, width)
            self.register_buffer(name, torch.zeros(shape, dtype=dtype))
        self.confusions = Confusions()
        self.learned: Tensor
        self.images: Tensor
        self.fitted: Tensor
        self.among: Tensor
        self.surprise: Tensor
        self.second: Tensor
        self.gaps: Tensor
        self.typical: Tensor

    @property
    def classes(self) -> int:
        return len(self.images)

    def check(self) -> None:
        """Raise a `DataError` if these cannot be statistics of scores."""
        super().check()
        self.require(self.gaps.shape[1] == BINS, "its histograms have another number of bins")
        self.require(self.surprise.shape[1] == len(TEMPERATURES) + len(RELATIVE), "it has other temperatures")
        self.require(self.confusions.classes <= self.classes, "it has confusions with classes beyond its own")
        self.require(
            self.confusions.images(self.classes) <= self.images, "it has confusions of more images than it saw"
        )
        for name in ("learned", "images", "among", "gaps", "typical"):
            self.require(self.get_buffer(name) >= 0, f"{name} holds counts below zero")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        table = state_dict.pop(f"{prefix}confusions", None)  # saved before pairs were
        if table is not None:
            pairs = Confusions.of_table(table).state_dict()
            state_dict.update({f"{prefix}confusions.{name}": counts for name, counts in pairs.items()})
        super()._load_from_state_dict(state_dict, prefix, *args)

    def count(self, targets: Tensor, classes: int) -> None:
        """Note that images were learned: the column of each one's class, and how many classes there are now."""
        self.add(torch.bincount(targets.to(self.learned.device), minlength=classes))

    def add(self, counts: Tensor) -> None:
        """Note that images were learned: how many of each class, of all that there are now."""
        self._grow(len(counts))
        self.learned += counts.to(self.learned)

    @torch.no_grad()
    def observe(
        self, scores: Tensor, targets: Tensor, margin_score: Tensor | None = None, left_out: bool = True
    ) -> None:
        """Add the scores of some images: (N, C) over all classes, with the column of each true class.

        Args:
            scores: as the scorer gives them.
            targets: columns of the right classes.
            typicality: see `Typicality`; None where it is not known.
            left_out: whether the scorer was made without these images.
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
        seen = torch.unique(targets)
        if left_out:
            self._clear(seen[self.fitted[seen]])
        self.fitted[seen] = not left_out
        arrived = torch.bincount(targets, minlength=self.classes)
        self.among[seen] = _mean_number(self.among, self.images, scores.shape[1], arrived)[seen]
        self.images += arrived
        found = [nll(scores, targets), nll(scores, targets, relative=True)]
        self.surprise.index_add_(0, targets, torch.cat([right for right, _ in found], 1))
        self.second.index_add_(0, targets, torch.cat([second for _, second in found], 1))
        self.confusions.add(targets, scores.argmax(1))
        _count(self.gaps, targets, bin_of(_gaps(self.calibration(scores), targets)))
        if margin_score is not None:
            _count(self.typical, targets, bin_of(margin_score.detach().to(home)[usable]))

    @property
    def calibration(self) -> Calibration:
        """The calibration of the lowest NLL; the identity without any observed image."""
        weights = self._weights()
        total = float((weights * self.images).sum())
        if total == 0:
            return Calibration()
        right, second = (weights @ rows for rows in (self.surprise, self.second))
        split = len(TEMPERATURES)
        plain, plain_nll = best_temperature(right[:split], second[:split], total)
        relative, relative_nll = best_temperature(right[split:], second[split:], total, relative=True)
        # Of two classes, scores divided by their deviation are always ±1 for every image.
        better = relative_nll < plain_nll and self.classes > 2
        return Calibration(relative, True) if better else Calibration(plain, False)

    @property
    def temperature(self) -> float:
        """That of `calibration`."""
        return self.calibration.temperature

    @property
    def held_out(self) -> bool:
        """Whether all of it comes from images that were left out."""
        return bool((self.images > 0).any()) and not bool(self.fitted[self._weights() > 0].any())

    def gap(self, coverage: float) -> float:
        """How far below the best a log-probability may be for its class to be in a set that holds the right one.

        Split conformal: the ⌈(n + 1)·coverage⌉-th smallest gap between the best and the right class of n images.
        """
        _check_share("coverage", coverage)
        weights = self._weights()
        histogram = weights @ self.gaps.double()
        return smallest_with(histogram, coverage, float(histogram.sum()) + 1)

    def sets(self, scores: Tensor, coverage: float) -> Tensor:
        """(N, C) whether each class is in the set; ``scores`` are calibrated. No set is empty."""
        return scores.amax(1, keepdim=True) - scores <= self.gap(coverage)

    def ood_score(self, margin_score: Tensor) -> Tensor:
        """The share of known images that are more typical: near 1 for images of no known class."""
        histogram = self._weights() @ self.typical.double()
        total = float(histogram.sum())
        if total == 0:
            return torch.zeros_like(margin_score, dtype=torch.float64)
        return share_above(histogram, margin_score.to(histogram.device), total + 1)

    def ood_threshold(self, false_alarms: float) -> float:
        """The typicality below which an image is called unknown, so that no more known ones are than this share."""
        _check_share("the rate of false alarms", false_alarms)
        histogram = self._weights() @ self.typical.double()
        if not bool(histogram.any()):
            return 0.0
        return largest_with(histogram, false_alarms, float(histogram.sum()))

    def summary(self, labels: Sequence[object]) -> list[ClassSummary]:
        """What is known about each class; ``labels`` in the order of the columns."""
        rows = zip(
            self.learned.tolist(),
            self.images.tolist(),
            self.fitted.tolist(),
            self.confusions.rows(self.classes),
            self.among.tolist(),
            strict=True,
        )
        found = []
        for column, (label, (learned, images, fitted, taken, among)) in enumerate(zip(labels, rows, strict=True)):
            hits = taken.pop(column, 0)
            others = sorted(taken, key=lambda other: -taken[other])
            found.append(
                ClassSummary(
                    label,
                    learned,
                    hits / images if images and not fitted else None,
                    tuple((labels[other], taken[other] / images) for other in others[:NEAREST]),
                    among,
                )
            )
        return found

    def remap_classes(self, groups: ClassMap) -> Self:
        smaller = type(self)(len(groups)).to(self.images.device)
        before, after = column_indices(groups, self.images.device)
        for name, _, _ in _ROWS:
            joined, rows = smaller.get_buffer(name), self.get_buffer(name)[before]
            if name in ("fitted", "among"):
                joined.copy_(joined.long().scatter_reduce_(0, after, rows.long(), "amax"))
            else:
                joined.index_add_(0, after, rows)
        smaller.confusions = self.confusions.remap_classes(groups)
        return smaller

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        both = type(self)(self.classes).to(self.images.device)
        both.load_state_dict(self.state_dict())
        both._grow(max(self.classes, 1 + max(columns, default=-1)))
        places = torch.tensor(columns, dtype=torch.long, device=both.images.device)
        here = both.images.device
        both.among[places] = _mean_number(
            both.among[places], both.images[places], other.among.to(here), other.images.to(here)
        )
        for name, _, _ in _ROWS:
            if name != "among":
                both.get_buffer(name)[places] += other.get_buffer(name).to(here)
        both.confusions = self.confusions.merged(other.confusions, columns)
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
            for name, width, _ in _ROWS:
                setattr(self, name, F.pad(self.get_buffer(name), (0, new) if width == 0 else (0, 0, 0, new)))

    def _clear(self, columns: Tensor) -> None:
        """Drop what fitted images showed, now that others were left out."""
        for name, _, _ in _ROWS:
            if name != "learned":
                self.get_buffer(name)[columns] = 0
        self.confusions.drop(columns)


_ROWS = (
    ("learned", 0, torch.long),
    ("images", 0, torch.long),
    ("fitted", 0, torch.bool),
    ("among", 0, torch.long),
    ("surprise", len(TEMPERATURES) + len(RELATIVE), torch.float64),
    ("second", len(TEMPERATURES) + len(RELATIVE), torch.float64),
    ("gaps", BINS, torch.int32),
    ("typical", BINS, torch.int32),
)
"""Name, numbers per class and type of each buffer that has a row per class."""


def _gaps(scores: Tensor, targets: Tensor) -> Tensor:
    """How far the right class is below the best."""
    return scores.amax(1) - scores.gather(1, targets.unsqueeze(1)).squeeze(1)


def _mean_number(numbers: Tensor, images: Tensor, more: Tensor | int, more_images: Tensor) -> Tensor:
    """The mean number of classes over both lots of images: a few new ones must not make the old ones new."""
    total = numbers * images + more * more_images
    return (total / (images + more_images).clamp_min(1)).round().long()


def _count(table: Tensor, rows: Tensor, columns: Tensor) -> None:
    table.index_put_((rows, columns), torch.ones_like(rows, dtype=table.dtype), accumulate=True)


def _check_share(name: str, share: float) -> None:
    if not 0 < share < 1:
        raise ConfigError(f"{name} lies between 0 and 1; got {share}")


class HeldOutScores(NamedTuple):
    """Scores of held-out images of the current task: the scorer was fitted without them."""

    scores: Tensor
    """(N, C), over all classes and on the scale of the scorer that was returned."""
    targets: Tensor
    """The column of each image's class."""


class Fitted(NamedTuple):
    """A scorer and, if the classifier computes them itself (leave-one-out), held-out scores."""

    scorer: Scorer
    left_out: HeldOutScores | None = None


class HoldoutFit(NamedTuple):
    """Memory and scorer fitted without the held-out images, and these images."""

    memory: ClassGaussians
    scorer: Scorer
    left: CurrentTask


HoldoutFitter = Callable[[], HoldoutFit | None]
"""Fits memory and classifier without the held-out images, once per task; None if no images are held out."""


def no_holdout_fit() -> HoldoutFit | None:
    """A `HoldoutFitter` for tasks without held-out images."""
    return None


Share = Annotated[float, Field(ge=0, lt=1)]
LEAST_KEPT = 2
"""Images of a class that are never left out: fewer have no covariance."""
MOST = 2000
"""Images of a task that are scored again at the most, where none are left out."""


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

    def training_part(self, now: CurrentTask, trains: bool) -> CurrentTask:
        """The part of a task that a network may be trained on."""
        return self._part(now, self.train_holdout) if trains else now

    def fit_part(self, now: CurrentTask, training: CurrentTask) -> CurrentTask:
        """The part of a task that memory and classifier are first fitted to; the task itself if nothing is held out."""
        return training if training is not now else self._part(now, self.share)

    def update(
        self, before: State | None, now: CurrentTask, holdout_fit: HoldoutFitter, fitted: Fitted, memory: ClassGaussians
    ) -> CalibrationStats:
        """The calibration statistics after a task.

        Args:
            before: that of the last task.
            now: the task, with all its images.
            holdout_fit: fits memory and classifier without the held-out images.
            fitted: the classifier after the task, from all its images.
            memory: that after the task.
        """
        known = as_state(before, CalibrationStats)
        evidence = copy.deepcopy(known) if known is not None else CalibrationStats().to(now.runtime.device)
        evidence.count(now.column_targets, len(now.all_classes))
        if fitted.left_out is not None:
            return _observed(evidence, fitted.left_out)
        held_out = holdout_fit()
        memory, scorer, scored = (memory, fitted.scorer, _some(now)) if held_out is None else held_out
        features = scored.prediction_features()
        with torch.no_grad():
            scores = by_rows(scorer, features)
            typical = MarginScore.of(memory, scorer.power)(features, scores)
        evidence.observe(scores, scored.column_targets, typical, left_out=held_out is not None)
        return evidence

    def gathered(self, before: State | None, counts: Tensor, left_out: HeldOutScores) -> CalibrationStats:
        """The calibration statistics after a batch of sums: images per class, and the scores of some of them."""
        known = as_state(before, CalibrationStats)
        evidence = copy.deepcopy(known) if known is not None else CalibrationStats().to(counts.device)
        evidence.add(counts)
        return _observed(evidence, left_out)

    def _part(self, now: CurrentTask, share: float) -> CurrentTask:
        """A task without some images of each class, or the task itself if there are too few."""
        kept = keep(now.data.targets, share, now.runtime.generator(now.name, "left out"))
        return now if bool(kept.all()) else now.part(kept.nonzero().flatten())


def _observed(evidence: CalibrationStats, left_out: HeldOutScores) -> CalibrationStats:
    evidence.observe(left_out.scores, left_out.targets, margin_score(left_out.scores))
    return evidence


def keep(targets: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A mask that is false for about ``share`` of the images of each class, and for one at least of enough images."""
    mask = torch.ones(len(targets), dtype=torch.bool)
    if share:
        for target in torch.unique(targets).tolist():
            members = (targets == target).nonzero().flatten()
            number = max(0, min(max(1, round(share * len(members))), len(members) - LEAST_KEPT))
            mask[members[torch.randperm(len(members), generator=generator)[:number]]] = False
    return mask


def _some(now: CurrentTask) -> CurrentTask:
    """At most `MOST` images of a task."""
    order = torch.randperm(len(now.data), generator=now.runtime.generator(now.name, "asked"))
    return now.part(order[:MOST])
