"""Evidence: what images showed that were not used for the answers to them, in a few numbers per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.errors import ConfigError
from adagauss.evidence.bins import BINS, bin_of, largest_with, share_above, smallest_with
from adagauss.evidence.confusions import Confusions
from adagauss.state import Groups, Learned, moves
from adagauss.temperature import RELATIVE, TEMPERATURES, Calibration, best_temperature, surprises

FADING = 4
"""Evidence found among few classes counts (classes then / classes now)^4: of more classes, more are confused."""
NEAREST = 3
"""Confusions that a summary names."""


@dataclass(frozen=True)
class ClassSummary:
    """What is known about the answers for one class."""

    label: object
    images: int
    """How many were learned."""
    expected_accuracy: float | None
    """Share of its images that were recognised while left out, when they came; None where none was left out."""
    confused_with: tuple[tuple[object, float], ...]
    """The classes that most of its images were taken for, and the share."""
    among: int = 0
    """How many classes were known then, as a mean over its images: among more, fewer are recognised."""


class Evidence(Learned):
    """Per class: surprises at each temperature, confusions, and histograms for sets of answers and strangeness.

    Whatever is asked of all classes together is a sum of rows, so that a class which is forgotten leaves nothing. Rows
    of images that the classifier was fitted on (``fitted``) count only while there are no others: they flatter.
    """

    axes: ClassVar[Mapping[str, str]] = {
        "learned": "c",
        "images": "c",
        "fitted": "c",
        "among": "c",
        "surprise": "ct",
        "second": "ct",
        "gaps": "cb",
        "typical": "cb",
    }
    keeps: ClassVar[str] = "counts and histograms of the answers to images of each class"

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
        """Raise a `DataError` if these cannot be counts of answers."""
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
    def observe(self, scores: Tensor, targets: Tensor, typicality: Tensor | None = None, left_out: bool = True) -> None:
        """Take in the answers to some images: (N, C) scores over all classes, and the column of each one's class.

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
        found = [surprises(scores, targets), surprises(scores, targets, relative=True)]
        self.surprise.index_add_(0, targets, torch.cat([right for right, _ in found], 1))
        self.second.index_add_(0, targets, torch.cat([second for _, second in found], 1))
        self.confusions.add(targets, scores.argmax(1))
        _count(self.gaps, targets, bin_of(_gaps(self.calibration(scores), targets)))
        if typicality is not None:
            _count(self.typical, targets, bin_of(typicality.detach().to(home)[usable]))

    @property
    def calibration(self) -> Calibration:
        """What makes scores most truthful as log-probabilities; nothing where no image was ever seen."""
        weights = self._weights()
        total = float((weights * self.images).sum())
        if total == 0:
            return Calibration()
        right, second = (weights @ rows for rows in (self.surprise, self.second))
        split = len(TEMPERATURES)
        plain, plain_surprise = best_temperature(right[:split], second[:split], total)
        relative, relative_surprise = best_temperature(right[split:], second[split:], total, relative=True)
        # Of two classes, scores divided by their deviation are always ±1, and say nothing about the image.
        better = relative_surprise < plain_surprise and self.classes > 2
        return Calibration(relative, True) if better else Calibration(plain, False)

    @property
    def temperature(self) -> float:
        """That of `calibration`."""
        return self.calibration.temperature

    @property
    def honest(self) -> bool:
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

    def unknownness(self, typicality: Tensor) -> Tensor:
        """The share of known images that are more typical: near 1 for images of no known class."""
        histogram = self._weights() @ self.typical.double()
        total = float(histogram.sum())
        if total == 0:
            return torch.zeros_like(typicality, dtype=torch.float64)
        return share_above(histogram, typicality.to(histogram.device), total + 1)

    def least_typicality(self, false_alarms: float) -> float:
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

    def regrouped(self, groups: Groups) -> Self:
        smaller = type(self)(len(groups)).to(self.images.device)
        before, after = moves(groups, self.images.device)
        for name, _, _ in _ROWS:
            joined, rows = smaller.get_buffer(name), self.get_buffer(name)[before]
            if name in ("fitted", "among"):
                joined.copy_(joined.long().scatter_reduce_(0, after, rows.long(), "amax"))
            else:
                joined.index_add_(0, after, rows)
        smaller.confusions = self.confusions.regrouped(groups)
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
        """(C,) what the evidence of each class counts now."""
        usable = self.images > 0
        left_out = usable & ~self.fitted
        usable = left_out if bool(left_out.any()) else usable
        return usable * (self.among.double() / max(1, self.classes)) ** FADING

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
