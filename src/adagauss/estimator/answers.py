"""What a classifier answers: scores of one state of knowledge, and named predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adagauss.data.images import Images, Label
from adagauss.knowledge import Knowledge
from adagauss.learner import Learner
from adagauss.progress import Reporter
from adagauss.runtime import Runtime

Array = npt.NDArray[Any]


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
class Answers:
    """Scores of some images, from one state: a task may be learned in the meantime."""

    classes: Array
    """Sorted."""
    scores: Tensor
    """(N, C), columns as ``classes``."""

    @classmethod
    def of(cls, learner: Learner, images: Images, reporter: Reporter) -> Answers:
        """What the learner knows now about images."""
        knowledge = learner.knowledge
        runtime = Runtime(learner.runtime.config, learner.runtime.seed, reporter)
        columns, classes = sorted_classes(knowledge)
        features = knowledge.features(learner.of_shape(images), runtime)
        return cls(classes, knowledge.scores(features)[:, columns])

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """(N, C)."""
        return np.asarray(torch.softmax(self.scores.double(), dim=1).cpu().numpy())

    @property
    def labels(self) -> Array:
        """The most probable class of each image."""
        winners: Array = self.classes[self.scores.argmax(1).cpu().numpy()]
        return winners

    def predictions(self, names: tuple[str, ...], top: int) -> list[Prediction]:
        """One named answer per image, with its ``top`` classes."""
        rows = self.probabilities
        best = np.argsort(-rows, axis=1, kind="stable")[:, :top]
        classes: list[Label] = self.classes.tolist()
        answers = []
        for name, row, columns in zip(names, rows, best, strict=True):
            named = [(classes[column], float(row[column])) for column in columns]
            answers.append(Prediction(name, *named[0], named))
        return answers


def sorted_classes(knowledge: Knowledge) -> tuple[list[int], Array]:
    """Columns of the scores in the order of the sorted classes, and these classes."""
    classes: list[Any] = knowledge.classes
    columns = sorted(range(len(classes)), key=classes.__getitem__)
    return columns, np.array([classes[column] for column in columns])
