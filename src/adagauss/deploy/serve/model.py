"""The immutable classifier of the server. Every change returns a new one, so readers need no lock."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import BaseModel

from adagauss.classifier import IncrementalClassifier, default_method
from adagauss.core.predictor import Prediction
from adagauss.data.decode import Pixels, ResizeMode
from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.images import Label
from adagauss.errors import DataError, unknown_name
from adagauss.utils.progress import Reporter

TOP = 10
"""Maximum number of classes in a prediction."""


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
        """Load a saved classifier; a missing file is an empty model."""
        return cls(IncrementalClassifier.load(path)) if path.exists() else cls()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Class names, in the order of the labels."""
        return tuple(map(str, self._labels))

    @cached_property
    def _labels(self) -> list[Label]:
        known = hasattr(self.classifier, "learner_")
        return self.classifier.classes_.tolist() if known else []

    @property
    def method(self) -> str:
        """Name of the method, or of the effort that selected it."""
        if not self.names:
            return "none yet"
        return str(self.classifier.method or f"effort {self.classifier.effort}")

    @property
    def picture_shape(self) -> tuple[int, int, ResizeMode | None]:
        """Size in pixels, number of channels and resize mode of the input images; None before the first task."""
        if not self.names:
            return self.classifier.image_size or PHOTO_SIZE, 3, None
        channels, height, width = self.classifier.learner_.shape
        if height != width:
            raise DataError(
                f"this classifier expects images of {height}×{width} pixels, but the server resizes to squares: "
                "use it from Python"
            )
        return height, channels, self.classifier.learner_.resize_mode

    def classify(self, pixels: list[Pixels], unknown: float | None) -> list[Prediction]:
        """Classify pictures."""
        return self.classifier.classify(np.stack(pixels), top=TOP, unknown=unknown)

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
            for one in (self.classifier.summary() if self.names else [])
        ]

    def taught(self, pixels: Sequence[Pixels], names: Sequence[str], reporter: Reporter) -> Model:
        """Return a model that has learned these pictures of new or known classes."""
        after = self._copy()
        if not self.names:
            after.method = default_method()  # set by name, so that the file contains it
        # The first task passes PIL images, so that the defaults for photographs apply.
        images = np.stack(pixels) if self.names else [Image.fromarray(one.transpose(1, 2, 0)) for one in pixels]
        after.verbose = reporter
        after.partial_fit(images, [self._label(name) for name in names])
        after.verbose = False
        model = replace(self, classifier=after)
        model.classify([pixels[0]], None)  # fills caches before the model is published
        return model

    def forgot(self, names: Sequence[str]) -> Model:
        """Return a model without these classes."""
        labels = [self._known(name) for name in dict.fromkeys(names)]
        if len(labels) == len(self.names):
            raise DataError("cannot forget all classes: undo the changes, or use another model file")
        return replace(self, classifier=self._copy().forget(*labels))

    def renamed(self, old: str, new: str) -> Model:
        """Return a model in which a class has a new name."""
        return replace(self, classifier=self._copy().rename(self._known(old), self._label(new)))

    @property
    def unsupported_actions(self) -> dict[str, str]:
        """Unsupported actions with the reasons."""
        reason = self.classifier.learner_.method.why_no_known_classes if self.names else None
        return {"teach more": reason} if reason else {}

    def _copy(self) -> IncrementalClassifier:
        """Copy the classifier; both share the immutable learned state."""
        after = copy.copy(self.classifier)
        if self.names:
            after.learner_ = copy.copy(after.learner_)
            after.learner_.runtime = copy.copy(after.learner_.runtime)
        return after

    def _known(self, name: str) -> Label:
        if not self.names:
            raise DataError(f"unknown class {name!r}: the model has no classes")
        if name not in self.names:
            raise unknown_name("class", name, self.names)
        return self._labels[self.names.index(name)]

    def _label(self, name: str) -> Label:
        """Return the label for a name; a number if the labels are numbers."""
        if name in self.names:
            return self._known(name)
        kind: Callable[[str], Label] = type(self._labels[0]) if self.names else str
        try:
            return kind(name)
        except ValueError:
            raise DataError(f"the labels of this classifier are numbers; got {name!r}") from None
