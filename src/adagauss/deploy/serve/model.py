"""The immutable classifier of the server. Every change returns a new one, so readers need no lock."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import BaseModel

from adagauss.classifier import IncrementalClassifier, default_method
from adagauss.core.predictor import Prediction
from adagauss.data.decode import Pixels, ResizeMode
from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.images import Label, normal_label
from adagauss.errors import DataError, unknown_name
from adagauss.utils.progress import Reporter

PictureShape = tuple[tuple[int, int], int, ResizeMode | None]
"""Height and width in pixels, number of channels and resize mode of pictures; with None they keep their proportions."""


class ClassProbability(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class KnownClass(BaseModel):
    """Summary of a class."""

    label: str
    images: int
    expected_accuracy: float | None
    confused_with: list[ClassProbability]
    """Classes that it is most often confused with, and how often."""


def probabilities(pairs: Iterable[tuple[object, float]]) -> list[ClassProbability]:
    """Return pairs of a label and a probability in the form of a response."""
    return [ClassProbability(label=str(label), probability=share) for label, share in pairs]


@dataclass(frozen=True, eq=False)
class Model:
    """A snapshot of the classifier; an empty one has no classes."""

    classifier: IncrementalClassifier = field(default_factory=IncrementalClassifier)
    version: int = 0
    """Number of the last change."""

    @classmethod
    def load(cls, path: Path) -> Model:
        """Load a saved classifier; a missing or empty file is an empty model."""
        return cls(IncrementalClassifier.load(path)) if path.exists() and path.stat().st_size else cls()

    @cached_property
    def labels(self) -> dict[str, Label]:
        """The label of each class name, in the order of the labels."""
        if not hasattr(self.classifier, "learner_"):
            return {}
        return {str(label): label for label in self.classifier.classes_.tolist()}

    @property
    def method(self) -> str:
        """Name of the method, or of the effort that selected it."""
        if not self.labels:
            return "none yet"
        return str(self.classifier.method or f"effort {self.classifier.effort}")

    @property
    def picture_shape(self) -> PictureShape:
        """Height and width, channels and resize mode of the input images; no resize mode before the first task."""
        if not self.labels:
            side = self.classifier.image_size or PHOTO_SIZE
            return (side, side), 3, None
        channels, height, width = self.classifier.learner_.shape
        return (height, width), channels, self.classifier.learner_.resize_mode

    def classify(self, pixels: Sequence[Pixels], top: int = 1, unknown: float | None = None) -> list[Prediction]:
        """Classify pictures."""
        return self.classifier.classify(np.stack(pixels), top, unknown)

    @cached_property
    def classes(self) -> list[KnownClass]:
        """Summary of each class."""
        return [
            KnownClass(
                label=str(one.label),
                images=one.images,
                expected_accuracy=one.expected_accuracy,
                confused_with=probabilities(one.confused_with),
            )
            for one in (self.classifier.summary() if self.labels else [])
        ]

    def taught(self, pixels: Sequence[Pixels], names: Sequence[str], reporter: Reporter) -> Model:
        """Return a model that has learned these pictures of new or known classes."""
        after = self._copy()
        if not self.labels:
            after.method = default_method()  # set by name, so that the file contains it
        # The first task passes PIL images, so that the defaults for photographs apply.
        images = np.stack(pixels) if self.labels else [Image.fromarray(one.transpose(1, 2, 0)) for one in pixels]
        after.verbose = reporter
        after.partial_fit(images, [self._label(name) for name in names])
        after.verbose = False
        model = replace(self, classifier=after)
        model.classify(pixels[:1])  # fills caches before the model is published
        return model

    def forgot(self, names: Sequence[str]) -> Model:
        """Return a model without these classes."""
        labels = [self._known(name) for name in dict.fromkeys(names)]
        if len(labels) == len(self.labels):
            raise DataError("cannot forget all classes: undo the changes, or use another model file")
        return replace(self, classifier=self._copy().forget(*labels))

    def renamed(self, old: str, new: str) -> Model:
        """Return a model in which a class has a new name."""
        return replace(self, classifier=self._copy().rename(self._known(old), self._label(new)))

    def merged(self, old: str, into: str) -> Model:
        """Return a model in which a class is part of another one."""
        return replace(self, classifier=self._copy().merge_classes(self._known(into), self._known(old)))

    @property
    def unsupported_actions(self) -> dict[str, str]:
        """Unsupported actions with the reasons."""
        reason = self.classifier.learner_.method.why_no_known_classes if self.labels else None
        return {"teach more": reason} if reason else {}

    def _copy(self) -> IncrementalClassifier:
        """Copy the classifier; both share the immutable learned state."""
        after = copy.copy(self.classifier)
        if self.labels:
            after.learner_ = copy.copy(after.learner_)
            after.learner_.runtime = copy.copy(after.learner_.runtime)
        return after

    def _known(self, name: str) -> Label:
        if not self.labels:
            raise DataError(f"unknown class {name!r}: the model has no classes")
        if name not in self.labels and (name := str(normal_label(name))) not in self.labels:
            raise unknown_name("class", name, self.labels)
        return self.labels[name]

    def _label(self, name: str) -> Label:
        """Return the label for a name; a number if the labels are numbers."""
        kind: Any = type(next(iter(self.labels.values()), ""))
        try:
            return self.labels[name] if name in self.labels else kind(name)
        except ValueError:
            raise DataError(f"the labels of this classifier are numbers; got {name!r}") from None
