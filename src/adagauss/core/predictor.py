"""The one prediction path: pixels → `Predictor` → `PredictionBatch`. Python, command line, REST and ONNX all use it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from adagauss.backbones import Extractor
from adagauss.core.calibration import CalibrationStats
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.ood import ClassDistance, MarginScore
from adagauss.core.state import Scorer
from adagauss.data.images import Label
from adagauss.errors import ConfigError, DataError, NumericalError

Array = npt.NDArray[Any]
Unknown = bool | float | None
"""Target false-positive rate of unknown-class detection; True for `FALSE_POSITIVE_RATE`, None or False for off."""
FALSE_POSITIVE_RATE = 0.05
MIN_IMAGES = 3
"""Images of a class from which every method holds some out."""


class Scores(NamedTuple):
    """Outputs of a `Predictor` for a batch of images."""

    scores: Tensor
    """(N, C): softmax gives calibrated probabilities."""
    p_value: Tensor
    """(N,): see `PValue`; low for images of no known class."""


class Predictor(nn.Module):
    """Maps images in 0..1 to calibrated scores and p-values: the module to export, serve or measure."""

    def __init__(
        self,
        extractor: Extractor,
        scorer: Scorer,
        stats: CalibrationStats,
        memory: ClassGaussians,
        columns: Sequence[Label],
    ) -> None:
        """``columns`` are the classes in the order of the scores."""
        super().__init__()
        self.extractor, self.scorer = extractor, scorer
        self.calibration, self.p_value, self.sets = stats.calibration, stats.p_value, stats.sets
        self.order = sorted(range(len(columns)), key=lambda column: (isinstance(columns[column], str), columns[column]))
        self.classes = np.array([columns[column] for column in self.order])
        self.margin = MarginScore.of(memory, scorer.power)
        self.distance: ClassDistance | None = None
        # Feature groups that no score depends on are not computed.
        self.read = scorer.reads(extractor.groups) if self.margin.weight is None else None
        sums, start = scorer.class_sums, int(stats.distance_start)
        if self.p_value.has_distances and sums is not None and len(sums) == extractor.size:
            starts = list(accumulate(extractor.groups, initial=0))
            if start not in starts[:-1]:
                raise DataError(f"distances begin at feature {start}, where no group of features begins")
            self.distance = ClassDistance(sums[start : starts[starts.index(start) + 1]], start)
            if self.read is not None:
                self.read = tuple(read or first == start for read, first in zip(self.read, starts, strict=False))

    def unknown_warning(self, unknown: Unknown) -> str | None:
        """A warning if no image can be labelled unknown at this rate, for lack of held-out images."""
        if unknown is None or unknown is False:
            return None
        rate, images = false_positive_rate(unknown), round(self.p_value.total) - 1
        if self.p_value.least(self.distance is not None) < rate:
            return None
        if not self.p_value.has_margins:
            return (
                "unknown-class detection has no held-out images of known classes, so no image is labelled unknown: "
                f"teach at least two classes, each with at least {MIN_IMAGES} different images"
            )
        return (
            f"unknown-class detection at the rate {rate:g} needs {math.floor(1 / rate)} held-out images of known "
            f"classes and has {images}, so no image is labelled unknown: teach more images, or use a larger rate"
        )

    def forward(self, images: Tensor) -> Scores:
        features = self.extractor(images, self.read, prediction=True)
        scores: Tensor = self.scorer(features)
        distances = None if self.distance is None else self.distance(features)
        return Scores(self.calibration(scores), self.p_value(self.margin(features, scores), distances))


def false_positive_rate(unknown: Unknown) -> float:
    """The rate that `Unknown` stands for; a value that is not a rate is a `ConfigError`."""
    rate = FALSE_POSITIVE_RATE if unknown is True else unknown
    if not isinstance(rate, int | float | np.floating) or not 0 < rate < 1:
        raise ConfigError(f"unknown must be True or a false-positive rate between 0 and 1; got {unknown!r}")
    return float(rate)


def finite(scores: Tensor) -> Tensor:
    """Return scores; raise a `NumericalError` if some are not finite."""
    # The largest score of an image is NaN if any is; an infinite one gives no probabilities.
    if scores.numel() and not bool(torch.isfinite(scores.amax(1)).all()):
        raise NumericalError(
            "the scores of some images are not finite: the network or the classifier has become useless, or its "
            "file was tampered with; use a learner that was saved earlier"
        )
    return scores


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image."""

    name: str
    """File name, or the position of an image in memory."""
    label: Label | None
    """The most probable class; None if unknown-class detection rejects the image."""
    probability: float
    """Probability of the most probable class."""
    top: list[tuple[Label, float]]
    """The most probable classes with their probabilities, best first."""


@dataclass(frozen=True)
class PredictionBatch:
    """Predictions for a batch of images by one state of a learner; every view derives from the same scores."""

    classes: Array
    """The sorted classes."""
    scores: Tensor
    """(N, C) calibrated scores of these classes."""
    p_value: Tensor
    """(N,) low for images of no known class."""
    sets: Callable[[Tensor, float], Tensor]
    """See `CalibrationStats.sets`."""

    @cached_property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """(N, C) class probabilities, columns as in `classes`."""
        return np.asarray(torch.softmax(self.scores.double(), dim=1).cpu().numpy())

    def labels(self, unknown: Unknown = None) -> Array:
        """Return the most probable class of each image; with ``unknown``, objects with None for rejected images."""
        winners: Array = self.classes[self.probabilities.argmax(1)]
        if unknown is None or unknown is False:
            return winners
        labels = np.array(winners.tolist(), dtype=object)
        labels[self.is_unknown(unknown)] = None
        return labels

    def is_unknown(self, unknown: float = FALSE_POSITIVE_RATE) -> npt.NDArray[np.bool_]:
        """(N,) whether an image seems to show no known class, at this false-positive rate; see `Unknown`."""
        return np.asarray((self.ood_score() > 1 - false_positive_rate(unknown)).cpu().numpy())

    def ood_score(self) -> Tensor:
        """(N,) the share of images of known classes that are more typical: near 1 for images of no known class."""
        return 1 - self.p_value

    def prediction_sets(self, coverage: float) -> list[list[Label]]:
        """For each image, the classes that contain the right one with this probability, most probable first."""
        sizes = self.sets(self.scores, coverage).sum(1).tolist()
        ranking = self.scores.argsort(1, descending=True).cpu().numpy()
        return [self.classes[row[:size]].tolist() for row, size in zip(ranking, sizes, strict=True)]

    def named(self, names: Sequence[str], top: int, unknown: Unknown = None) -> list[Prediction]:
        """Return one `Prediction` per image, with its ``top`` classes."""
        classes, predictions = self.classes.tolist(), []
        for name, label, row in zip(names, self.labels(unknown).tolist(), self.probabilities, strict=True):
            best = [(classes[column], float(row[column])) for column in np.argsort(-row, kind="stable")[:top]]
            predictions.append(Prediction(name, label, best[0][1], best))
        return predictions
