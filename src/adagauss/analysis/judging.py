"""How good the answers of a classifier are, as pure functions of answers and truths."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from adagauss.data.images import Label

BINS = 15
NORMAL_95 = 1.959963985


@dataclass(frozen=True)
class Judged:
    """One image: what it shows, and what was answered."""

    name: str
    truth: Label
    answer: Label
    probability: float
    """Of the answer."""
    of_truth: float
    """Probability of the true class."""

    @property
    def right(self) -> bool:
        return self.answer == self.truth


@dataclass(frozen=True)
class OfClass:
    """The images of one class."""

    label: Label
    images: int
    right: int
    taken_for: Label | None
    """The class that its wrong answers name most often."""

    @property
    def accuracy(self) -> float:
        return self.right / self.images


def accuracy(judged: Sequence[Judged]) -> float:
    """Share of right answers."""
    return sum(one.right for one in judged) / len(judged)


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n).

    >>> tuple(round(end, 3) for end in interval(90, 100))
    (0.826, 0.945)
    """
    share, square = right / count, NORMAL_95**2
    middle = share + square / (2 * count)
    spread = NORMAL_95 * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    scale = 1 + square / count
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def calibration_error(judged: Sequence[Judged], bins: int = BINS) -> float:
    """Expected calibration error: Σ_b n_b/n · |accuracy_b − mean probability_b|, over bins of equal width.

    >>> sure = [Judged("", "a", "a", 0.8, 0.8)] * 4 + [Judged("", "a", "b", 0.8, 0.2)]
    >>> round(calibration_error(sure), 6)
    0.0
    """
    return _gap([one.probability for one in judged], [one.right for one in judged], bins)


def calibration_error_by_chance(judged: Sequence[Judged], bins: int = BINS, draws: int = 100) -> float:
    """The calibration error that so few images would show if every probability were true, on average.

    >>> few, many = ([Judged("", "a", "a", 0.8, 0.8)] * number for number in (10, 1000))
    >>> calibration_error_by_chance(few) > 5 * calibration_error_by_chance(many) > 0
    True
    """
    drawn = random.Random(0)
    shares = [one.probability for one in judged]
    return sum(_gap(shares, [drawn.random() < share for share in shares], bins) for _ in range(draws)) / draws


def _gap(shares: Sequence[float], right: Sequence[bool], bins: int) -> float:
    gaps: dict[int, float] = {}
    for share, hit in zip(shares, right, strict=True):
        place = min(int(share * bins), bins - 1)
        gaps[place] = gaps.get(place, 0.0) + hit - share
    return sum(map(abs, gaps.values())) / len(shares)


def by_class(judged: Sequence[Judged]) -> list[OfClass]:
    """Each class that was shown, the one with the lowest accuracy first."""
    found = []
    for label in dict.fromkeys(one.truth for one in judged):
        own = [one for one in judged if one.truth == label]
        wrong = Counter(one.answer for one in own if not one.right)
        taken_for = wrong.most_common(1)[0][0] if wrong else None
        found.append(OfClass(label, len(own), len(own) - wrong.total(), taken_for))
    return sorted(found, key=lambda one: (one.accuracy, str(one.label)))


def confusion(judged: Sequence[Judged], classes: Sequence[Label]) -> list[list[int]]:
    """Counts: row of the true class, column of the answer."""
    place = {label: index for index, label in enumerate(classes)}
    counts = [[0] * len(classes) for _ in classes]
    for one in judged:
        counts[place[one.truth]][place[one.answer]] += 1
    return counts


def worst(judged: Sequence[Judged], count: int) -> list[Judged]:
    """Wrong answers, those first that gave the true class the lowest probability."""
    return sorted((one for one in judged if not one.right), key=lambda one: (one.of_truth, one.name))[:count]
