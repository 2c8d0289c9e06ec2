"""Metrics of labelled predictions, and a contact sheet of the wrong ones."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adagauss.analysis.plotting import new_figure, shown
from adagauss.data.decode import decode_image
from adagauss.data.images import Label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 15
NORMAL_95 = 1.959963985
COLUMNS = 4
SIDE = 224


@dataclass(frozen=True)
class LabelledPrediction:
    """The prediction for an image with a known class."""

    name: str
    true: Label
    predicted: Label
    probability: float
    """Of the predicted class."""
    true_probability: float
    """Of the true class."""

    @property
    def correct(self) -> bool:
        return self.predicted == self.true


@dataclass(frozen=True)
class ClassAccuracy:
    """The images of one class."""

    label: Label
    images: int
    correct: int
    confused_with: Label | None
    """The most frequent wrong prediction."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.images


def accuracy(predictions: Sequence[LabelledPrediction]) -> float:
    """Share of correct predictions."""
    return sum(one.correct for one in predictions) / len(predictions)


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n).

    >>> tuple(round(end, 3) for end in wilson_interval(90, 100))
    (0.826, 0.945)
    """
    share, square = correct / count, NORMAL_95**2
    middle = share + square / (2 * count)
    spread = NORMAL_95 * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    scale = 1 + square / count
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def calibration_error(predictions: Sequence[LabelledPrediction], bins: int = BINS) -> float:
    """Expected calibration error: Σ_b n_b/n · |accuracy_b − mean probability_b|, over bins of equal width.

    >>> sure = [LabelledPrediction("", "a", "a", 0.8, 0.8)] * 4 + [LabelledPrediction("", "a", "b", 0.8, 0.2)]
    >>> round(calibration_error(sure), 6)
    0.0
    """
    return _gap([one.probability for one in predictions], [one.correct for one in predictions], bins)


def calibration_error_by_chance(predictions: Sequence[LabelledPrediction], bins: int = BINS, draws: int = 100) -> float:
    """The mean calibration error that a perfectly calibrated model would show on a test set of this size.

    >>> few, many = ([LabelledPrediction("", "a", "a", 0.8, 0.8)] * number for number in (10, 1000))
    >>> calibration_error_by_chance(few) > 5 * calibration_error_by_chance(many) > 0
    True
    """
    drawn = random.Random(0)
    shares = [one.probability for one in predictions]
    return sum(_gap(shares, [drawn.random() < share for share in shares], bins) for _ in range(draws)) / draws


def _gap(shares: Sequence[float], correct: Sequence[bool], bins: int) -> float:
    gaps: dict[int, float] = {}
    for share, hit in zip(shares, correct, strict=True):
        place = min(int(share * bins), bins - 1)
        gaps[place] = gaps.get(place, 0.0) + hit - share
    return sum(map(abs, gaps.values())) / len(shares)


def by_class(predictions: Sequence[LabelledPrediction]) -> list[ClassAccuracy]:
    """Each true class, the one with the lowest accuracy first."""
    found = []
    for label in dict.fromkeys(one.true for one in predictions):
        own = [one for one in predictions if one.true == label]
        wrong = Counter(one.predicted for one in own if not one.correct)
        confused_with = wrong.most_common(1)[0][0] if wrong else None
        found.append(ClassAccuracy(label, len(own), len(own) - wrong.total(), confused_with))
    return sorted(found, key=lambda one: (one.accuracy, str(one.label)))


def worst(predictions: Sequence[LabelledPrediction], count: int) -> list[LabelledPrediction]:
    """Wrong predictions, those with the lowest probability of the true class first."""
    wrong = [one for one in predictions if not one.correct]
    return sorted(wrong, key=lambda one: (one.true_probability, one.name))[:count]


def contact_sheet(predictions: Sequence[LabelledPrediction], title: str) -> Figure:
    """A sheet of the images; the caption of each names the prediction, the true class and the file."""
    rows = max(1, -(-len(predictions) // COLUMNS))
    figure = new_figure(2.3 * COLUMNS, 2.8 * rows + 0.5)
    figure.suptitle(shown(title, 90), fontsize=9)
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, one in zip(grid.flat, predictions, strict=False):
        axes.imshow(np.moveaxis(decode_image(Path(one.name), SIDE), 0, 2))
        predicted = f"{shown(one.predicted, 26)} {100 * one.probability:.0f} %"
        file = shown(Path(one.name).name, 26, keep_end=True)
        axes.set_title(f"{predicted}\nis {shown(one.true, 23)}\n{file}", fontsize=7)
    return figure
