"""The immutable classifier of the server. Every change returns a new one, so readers need no lock."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import BaseModel

from adagauss.classifier import IncrementalClassifier, default_method
from adagauss.data.decode import Pixels, ResizeMode
from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.images import Label
from adagauss.deploy.serve.security import Limits
from adagauss.errors import AdagaussError, DataError, UnsupportedError, unknown_name
from adagauss.utils.progress import Reporter

TOP = 10
"""Maximum number of classes in a prediction."""


class ClassProbability(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class Answer(BaseModel):
    """The predicted class, or None for an unknown class."""

    label: str | None
    probability: float
    top: list[ClassProbability]


class KnownClass(BaseModel):
    """Summary of a class."""

    label: str
    images: int
    expected_accuracy: float | None
    confused_with: list[ClassProbability]
    """Classes that it is most often confused with, and how often."""


@dataclass(frozen=True, eq=False)
class Model:
    """A snapshot of the classifier; an empty one has no classes."""

    classifier: IncrementalClassifier
    names: tuple[str, ...] = ()
    """Class names, in the order of the labels."""
    _reasons: dict[str, str] = field(default_factory=dict)
    """For each checked action the reason why it is unsupported; empty if it is supported."""

    @classmethod
    def empty(cls) -> Model:
        """Create a model without classes."""
        return cls(IncrementalClassifier())

    @classmethod
    def load(cls, path: Path) -> Model:
        """Load a saved classifier."""
        return cls._of(IncrementalClassifier.load(path))

    @classmethod
    def _of(cls, classifier: IncrementalClassifier, reasons: dict[str, str] | None = None) -> Model:
        classifier.verbose = False
        names = tuple(str(label) for label in classifier.classes_.tolist())
        return cls(classifier, names, {} if reasons is None else reasons)

    def save(self, path: Path) -> None:
        """Save the classifier atomically."""
        self.classifier.save(path)

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

    def classify(self, pixels: list[Pixels], unknown: float | None) -> list[Answer]:
        """Classify pictures."""
        if not self.names:
            raise DataError("nothing has been taught yet: teach at least one class first")
        found = self.classifier.classify(np.stack(pixels), top=TOP, unknown=unknown)
        return [
            Answer(
                label=None if prediction.label is None else str(prediction.label),
                probability=float(prediction.probability),
                top=[ClassProbability(label=str(label), probability=float(share)) for label, share in prediction.top],
            )
            for prediction in found
        ]

    @cached_property
    def classes(self) -> list[KnownClass]:
        """Summary of each class."""
        return [
            KnownClass(
                label=str(one.label),
                images=one.images,
                expected_accuracy=one.expected_accuracy,
                confused_with=[
                    ClassProbability(label=str(other), probability=share) for other, share in one.confused_with
                ],
            )
            for one in (self.classifier.summary() if self.names else [])
        ]

    def taught(self, pixels: Sequence[Pixels], names: Sequence[str], reporter: Reporter) -> Model:
        """Return a model that has learned these pictures of new or known classes."""
        after = self._copy(reporter)
        if not self.names:
            after.method = default_method()  # set by name, so that the file contains it
        # The first task passes PIL images, so that the defaults for photographs apply.
        images = np.stack(pixels) if self.names else [Image.fromarray(one.transpose(1, 2, 0)) for one in pixels]
        after.partial_fit(images, [self._label(name) for name in names])
        model = self._of(after, self._reasons)
        model.classify([pixels[0]], None)  # fills caches before the model is published
        return model

    def forgot(self, names: Sequence[str]) -> Model:
        """Return a model without these classes."""
        labels = [self._known(name) for name in dict.fromkeys(names)]
        if len(labels) == len(self.names):
            raise DataError("cannot forget all classes: undo the changes, or use another model file")
        after = self._copy()
        after.forget(*labels)
        return self._of(after, self._reasons)

    def renamed(self, old: str, new: str) -> Model:
        """Return a model in which a class has a new name."""
        after = self._copy()
        after.rename(self._known(old), self._label(new))
        return self._of(after, self._reasons)

    def unsupported_actions(self) -> dict[str, str]:
        """Return unsupported actions with the reasons. They depend on the method only, so they are checked once."""
        if self._reasons or len(self.names) < 2:  # the check needs two classes
            return {action: reason for action, reason in self._reasons.items() if reason}
        no_forget = ""
        try:
            self._copy().forget(self._known(self.names[0]))
        except UnsupportedError as error:
            no_forget = str(error)
        except AdagaussError:
            pass  # specific to this class, not to the method
        found = {
            "forget": no_forget,
            "teach more": self.classifier.learner_.method.why_no_known_classes or "",
            "onnx": "" if find_spec("onnxscript") else "ONNX export requires its extra: pip install 'adagauss[onnx]'",
        }
        self._reasons.update(found)  # in one step: other threads may be reading
        return self.unsupported_actions()

    def require_can(self, action: str) -> None:
        """Raise if the method does not support this action."""
        if reason := self.unsupported_actions().get(action):
            raise UnsupportedError(reason)

    def _copy(self, reporter: Reporter | None = None) -> IncrementalClassifier:
        """Copy the classifier; both share the immutable learned state."""
        after = copy.copy(self.classifier)
        after.verbose = reporter or False
        if self.names:
            after.learner_ = copy.copy(after.learner_)
            after.learner_.runtime = copy.copy(after.learner_.runtime)
        return after

    def _known(self, name: str) -> Label:
        if not self.names:
            raise DataError(f"unknown class {name!r}: the model has no classes")
        if name not in self.names:
            raise unknown_name("class", name, self.names)
        return self.classifier.classes_.tolist()[self.names.index(name)]  # type: ignore[no-any-return]

    def _label(self, name: str) -> Label:
        """Return the label for a name; a number if the labels are numbers."""
        if name in self.names:
            return self._known(name)
        kinds = {type(label) for label in self.classifier.classes_.tolist()} if self.names else {str}
        if kinds <= {str}:
            return name
        for kind in kinds:
            try:
                return kind(name)
            except ValueError:
                continue
        raise DataError(f"the labels of this classifier are numbers; got {name!r}")


def class_name(text: str, limits: Limits) -> str:
    """Normalise whitespace in a class name and check its length and characters.

    >>> class_name("  snow\\u00a0owl ", Limits())
    'snow owl'
    """
    name = " ".join(text.split())
    if not name or len(name) > limits.name or not name.isprintable():
        raise DataError(f"a class name must have 1 to {limits.name} printable characters; got {name[: limits.name]!r}")
    return name
