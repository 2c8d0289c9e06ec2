"""Metrics of labelled predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from adagauss.data.images import Label

BINS = 15


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


class ClassAccuracy(NamedTuple):
    """The images of one class."""

    label: Label
    images: int
    accuracy: float
    confused_with: Label | None
    """The most frequent wrong prediction."""


def accuracy(predictions: Sequence[LabelledPrediction]) -> float:
    """Share of correct predictions."""
    return sum(one.correct for one in predictions) / len(predictions)


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> tuple(round(end, 3) for end in wilson_interval(90, 100))
    (0.826, 0.945)
    """
    low, high = binomtest(correct, count).proportion_ci(method="wilson")
    return float(low), float(high)


def calibration_error(predictions: Sequence[LabelledPrediction]) -> float:
    """Expected calibration error: Σ_b n_b/n · |accuracy_b − mean probability_b|, over `BINS` of equal width.

    >>> sure = [LabelledPrediction("", "a", "a", 0.8, 0.8)] * 4 + [LabelledPrediction("", "a", "b", 0.8, 0.2)]
    >>> round(calibration_error(sure), 6)
    0.0
    """
    shares = np.array([one.probability for one in predictions])
    return _gap(shares, np.array([one.correct for one in predictions]))


def calibration_error_by_chance(predictions: Sequence[LabelledPrediction], draws: int = 100) -> float:
    """The mean calibration error that a perfectly calibrated model would show on a test set of this size.

    >>> few, many = ([LabelledPrediction("", "a", "a", 0.8, 0.8)] * number for number in (10, 1000))
    >>> calibration_error_by_chance(few) > 5 * calibration_error_by_chance(many) > 0
    True
    """
    shares = np.array([one.probability for one in predictions])
    drawn = np.random.default_rng(0).random((draws, len(shares))) < shares
    return float(np.mean([_gap(shares, correct) for correct in drawn]))


def _gap(shares: npt.NDArray[np.float64], correct: npt.NDArray[np.bool_]) -> float:
    places = np.minimum((shares * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(places, correct - shares)).sum() / len(shares))


def by_class(predictions: Sequence[LabelledPrediction]) -> list[ClassAccuracy]:
    """Each true class, the one with the lowest accuracy first."""
    found = []
    for label in dict.fromkeys(one.true for one in predictions):
        own = [one for one in predictions if one.true == label]
        wrong = Counter(one.predicted for one in own if not one.correct)
        confused_with = wrong.most_common(1)[0][0] if wrong else None
        found.append(ClassAccuracy(label, len(own), accuracy(own), confused_with))
    return sorted(found, key=lambda one: (one.accuracy, str(one.label)))


def worst(predictions: Sequence[LabelledPrediction], count: int) -> list[LabelledPrediction]:
    """Wrong predictions, those with the lowest probability of the true class first."""
    wrong = [one for one in predictions if not one.correct]
    return sorted(wrong, key=lambda one: (one.true_probability, one.name))[:count]


def summarise(predictions: Sequence[LabelledPrediction]) -> dict[str, Any]:
    """All metrics of labelled predictions, as ``adagauss evaluate --json`` writes them."""
    return {
        "images": len(predictions),
        "accuracy": accuracy(predictions),
        "accuracy_interval": wilson_interval(sum(one.correct for one in predictions), len(predictions)),
        "mean_probability": sum(one.probability for one in predictions) / len(predictions),
        "calibration_error": calibration_error(predictions),
        "calibration_error_by_chance": calibration_error_by_chance(predictions),
        "classes": [
            {"class": one.label, "images": one.images, "accuracy": one.accuracy, "confused_with": one.confused_with}
            for one in by_class(predictions)
        ],
        "wrong": [
            {"image": one.name, "class": one.true, "answer": one.predicted, "probability": one.probability}
            for one in worst(predictions, len(predictions))
        ],
    }
