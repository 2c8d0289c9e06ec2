"""Metrics of labelled predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from adagauss.data.images import Label

BINS = 15


class LabelledPrediction(NamedTuple):
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


def accuracy(predictions: Sequence[LabelledPrediction]) -> float:
    """Share of correct predictions."""
    return sum(one.correct for one in predictions) / len(predictions)


def calibration_error(probabilities: npt.ArrayLike, correct: npt.ArrayLike) -> float:
    """Expected calibration error: Σ_b n_b/n · |accuracy_b − mean probability_b|, over `BINS` of equal width.

    >>> round(calibration_error([0.8] * 5, [True, True, True, True, False]), 6)
    0.0
    """
    shares = np.asarray(probabilities)
    places = np.minimum((shares * BINS).astype(int), BINS - 1)
    return float(np.abs(np.bincount(places, np.asarray(correct) - shares)).sum() / len(shares))


def calibration_error_by_chance(probabilities: npt.ArrayLike, draws: int = 100) -> float:
    """The mean calibration error that a perfectly calibrated model would show on a test set of this size.

    >>> calibration_error_by_chance([0.8] * 10) > 5 * calibration_error_by_chance([0.8] * 1000) > 0
    True
    """
    shares = np.asarray(probabilities)
    drawn = np.random.default_rng(0).random((draws, len(shares))) < shares
    return float(np.mean([calibration_error(shares, correct) for correct in drawn]))


def by_class(predictions: Sequence[LabelledPrediction]) -> list[dict[str, Any]]:
    """Images, accuracy and most frequent wrong prediction of each true class, the lowest accuracy first."""
    found = []
    for label in dict.fromkeys(one.true for one in predictions):
        own = [one for one in predictions if one.true == label]
        wrong = Counter(one.predicted for one in own if not one.correct).most_common(1)
        confused_with = wrong[0][0] if wrong else None
        found.append({"class": label, "images": len(own), "accuracy": accuracy(own), "confused_with": confused_with})
    return sorted(found, key=lambda one: (one["accuracy"], str(one["class"])))


def worst(predictions: Sequence[LabelledPrediction], count: int) -> list[LabelledPrediction]:
    """Wrong predictions, those with the lowest probability of the true class first."""
    wrong = [one for one in predictions if not one.correct]
    return sorted(wrong, key=lambda one: (one.true_probability, one.name))[:count]


def summarise(predictions: Sequence[LabelledPrediction]) -> dict[str, Any]:
    """All metrics of labelled predictions, as ``adagauss evaluate --json`` writes them."""
    probabilities, correct = zip(*((one.probability, one.correct) for one in predictions), strict=True)
    interval = binomtest(sum(correct), len(correct)).proportion_ci(confidence_level=0.95, method="wilson")
    return {
        "images": len(predictions),
        "accuracy": accuracy(predictions),
        "accuracy_interval": tuple(map(float, (interval.low, interval.high))),
        "mean_probability": sum(probabilities) / len(predictions),
        "calibration_error": calibration_error(probabilities, correct),
        "calibration_error_by_chance": calibration_error_by_chance(probabilities),
        "classes": by_class(predictions),
        "wrong": [
            {"image": one.name, "class": one.true, "answer": one.predicted, "probability": one.probability}
            for one in worst(predictions, len(predictions))
        ],
    }
