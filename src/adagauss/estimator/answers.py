"""What a classifier answers about images: labels, probabilities, sets, and named predictions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.core.learner_state import LearnerState
from adagauss.data.images import Images, Label
from adagauss.errors import ConfigError
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

Array = npt.NDArray[Any]
Unknown = bool | float | None
"""Whether images may be of no known class: a wished rate of false alarms, or True for `FALSE_ALARMS`."""

FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Prediction:
    """The answer for one image."""

    name: str
    """File name, or the position of an image in memory."""
    label: Label | None
    """The most probable class; None if the image seems to show none of the classes."""
    probability: float
    """Of the most probable class."""
    top: list[tuple[Label, float]]
    """The most probable classes with their probabilities, best first."""


@dataclass(frozen=True)
class Asked:
    """Images asked about, all answers from one state of knowledge: a task may be learned in the meantime."""

    state: LearnerState
    features: Tensor

    @classmethod
    def of(cls, learner: Learner, images: Images, reporter: Reporter) -> Asked:
        """Images put to what the learner knows now."""
        state = learner.state
        runtime = Runtime(learner.runtime.config, learner.runtime.seed, reporter)
        return cls(state, state.prediction_features(learner.of_shape(images), runtime))

    @cached_property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """(N, C), columns as `sorted_classes`."""
        scores = self.state.scores(self.features)[:, sorted_classes(self.state)[0]]
        return np.asarray(torch.softmax(scores.double(), dim=1).cpu().numpy())

    def labels(self, unknown: Unknown) -> Array:
        """The most probable class of each image; with ``unknown``, objects with None for images of no known class."""
        _, classes = sorted_classes(self.state)
        winners: Array = classes[self.probabilities.argmax(1)]
        rate = false_alarms(unknown)
        if rate is None:
            return winners
        answers = np.array(winners.tolist(), dtype=object)
        answers[self.strange(rate)] = None
        return answers

    def strange(self, rate: float) -> npt.NDArray[np.bool_]:
        """(N,) whether an image seems to show no known class, wrongly for this share of images that do."""
        least = self.state.evidence.ood_threshold(rate)
        return np.asarray((self.state.answers(self.features).margin_score < least).cpu().numpy())

    def predictions(self, names: tuple[str, ...], top: int, unknown: Unknown) -> list[Prediction]:
        """One named answer per image, with its ``top`` classes."""
        labels: list[Label | None] = self.labels(unknown).tolist()
        classes: list[Label] = sorted_classes(self.state)[1].tolist()
        answers = []
        for name, label, row in zip(names, labels, self.probabilities, strict=True):
            best = [(classes[column], float(row[column])) for column in np.argsort(-row, kind="stable")[:top]]
            answers.append(Prediction(name, label, best[0][1], best))
        return answers


def false_alarms(unknown: Unknown) -> float | None:
    """The wished rate of false alarms, or None if every image is of a known class.

    >>> false_alarms(True), false_alarms(0.01), false_alarms(None)
    (0.05, 0.01, None)
    """
    if unknown is None or unknown is False:
        return None
    if unknown is True:
        return FALSE_ALARMS
    if not isinstance(unknown, int | float | np.floating) or not 0 < unknown < 1:
        raise ConfigError(f"unknown must be True or a rate of false alarms between 0 and 1; got {unknown!r}")
    return float(unknown)


def sorted_classes(state: LearnerState) -> tuple[list[int], Array]:
    """Columns of the scores in the order of the sorted classes, and these classes."""
    classes: list[Any] = state.classes
    columns = sorted(range(len(classes)), key=classes.__getitem__)
    return columns, np.array([classes[column] for column in columns])
