"""The classifier as the server uses it: never changed, every change makes another one, so that readers need no lock."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import BaseModel

from adagauss.classifier import IncrementalClassifier, default_method
from adagauss.data.decode import Pixels
from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.images import Label
from adagauss.deploy.serve.security import Limits
from adagauss.errors import AdagaussError, DataError, UnsupportedError, unknown_name
from adagauss.utils.progress import Reporter

TOP = 10
"""Most classes in an answer."""


class ClassProbability(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class Answer(BaseModel):
    """What a picture shows: the class, or None where it looks like none of the known ones."""

    label: str | None
    probability: float
    top: list[ClassProbability]


class KnownClass(BaseModel):
    """What is known about a class."""

    label: str
    images: int
    expected_accuracy: float | None
    confused_with: list[ClassProbability]
    """Classes that its pictures are most often taken for, and how often."""


@dataclass(frozen=True, eq=False)
class Model:
    """A classifier at one moment; an empty one has learned nothing yet."""

    classifier: IncrementalClassifier
    names: tuple[str, ...] = ()
    """Classes as text, in the order of their labels."""
    _reasons: dict[str, str] = field(default_factory=dict)
    """For each action that was tried, why the method cannot do it; empty if it can."""

    @classmethod
    def empty(cls) -> Model:
        """A classifier that was taught nothing."""
        return cls(IncrementalClassifier())

    @classmethod
    def load(cls, path: Path) -> Model:
        """From a saved file."""
        return cls._of(IncrementalClassifier.load(path))

    @classmethod
    def _of(cls, classifier: IncrementalClassifier, reasons: dict[str, str] | None = None) -> Model:
        classifier.verbose = False
        names = tuple(str(label) for label in classifier.classes_.tolist())
        return cls(classifier, names, {} if reasons is None else reasons)

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all."""
        self.classifier.save(path)

    @property
    def method(self) -> str:
        """The name of its method, or of the effort that chose it."""
        if not self.names:
            return "none yet"
        return str(self.classifier.method or f"effort {self.classifier.effort}")

    @property
    def picture_shape(self) -> tuple[int, int]:
        """Side in pixels and channels of the pictures it takes."""
        if not self.names:
            return self.classifier.image_size or PHOTO_SIZE, 3
        channels, height, width = self.classifier.learner_.shape
        if height != width:
            raise DataError(
                f"this classifier was taught pictures of {height}×{width} pixels, and uploaded ones are made square: "
                "use it from Python"
            )
        return height, channels

    def classify(self, pixels: list[Pixels], unknown: float | None) -> list[Answer]:
        """What each picture shows."""
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
        """What is known about each class."""
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
        """After learning these pictures, of new classes and known ones."""
        after = self._copy(reporter)
        if not self.names:
            after.method = default_method()  # by its name, so that the file tells it
        # As pictures the first time, so that the settings for photographs are taken.
        images = np.stack(pixels) if self.names else [Image.fromarray(one.transpose(1, 2, 0)) for one in pixels]
        after.partial_fit(images, [self._label(name) for name in names])
        model = self._of(after, self._reasons)
        model.classify([pixels[0]], None)  # what is computed once only is computed before readers come
        return model

    def forgot(self, names: Sequence[str]) -> Model:
        """Without some classes."""
        labels = [self._known(name) for name in dict.fromkeys(names)]
        if len(labels) == len(self.names):
            raise DataError("these are all classes it knows: undo what was taught, or begin with another file")
        after = self._copy()
        after.forget(*labels)
        return self._of(after, self._reasons)

    def renamed(self, old: str, new: str) -> Model:
        """With another name for a class."""
        after = self._copy()
        after.rename(self._known(old), self._label(new))
        return self._of(after, self._reasons)

    def unsupported_actions(self) -> dict[str, str]:
        """Actions that its method cannot do, and why; the same for all models that follow, so it is found out once."""
        if self._reasons or len(self.names) < 2:  # with fewer classes there is nothing to try it on
            return {action: reason for action, reason in self._reasons.items() if reason}
        found = {
            "forget": _reason(lambda: self._copy().forget(self._known(self.names[0]))),
            "teach more": self.classifier.learner_.method.why_no_known_classes or "",
            "onnx": "" if find_spec("onnxscript") else "ONNX needs its extra: pip install 'adagauss[onnx]'",
        }
        self._reasons.update(found)  # at once: others may be reading
        return self.unsupported_actions()

    def require_can(self, action: str) -> None:
        """Raise if its method cannot do this."""
        if reason := self.unsupported_actions().get(action):
            raise UnsupportedError(reason)

    def _copy(self, reporter: Reporter | None = None) -> IncrementalClassifier:
        """Another classifier that shares what was learned, which neither of them changes."""
        after = copy.copy(self.classifier)
        after.verbose = reporter or False
        if self.names:
            after.learner_ = copy.copy(after.learner_)
            after.learner_.runtime = copy.copy(after.learner_.runtime)
        return after

    def _known(self, name: str) -> Label:
        if not self.names:
            raise DataError(f"there is no class {name!r}: nothing has been taught yet")
        if name not in self.names:
            raise unknown_name("class", name, self.names)
        return self.classifier.classes_.tolist()[self.names.index(name)]  # type: ignore[no-any-return]

    def _label(self, name: str) -> Label:
        """The label for a name: a number where the classes were taught as numbers."""
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
        raise DataError(f"the classes of this classifier are numbers, and {name!r} is none")


def _reason(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except UnsupportedError as error:
        return str(error)
    except AdagaussError:
        return ""  # a matter of this class, and no reason that holds for others
    return ""


def class_name(text: str, limits: Limits) -> str:
    """A name for a class that people can read: no control characters, not too long.

    >>> class_name("  snow\\u00a0owl ", Limits())
    'snow owl'
    """
    name = " ".join(text.split())
    if not name or len(name) > limits.name or not name.isprintable():
        raise DataError(f"a class name has 1 to {limits.name} printable characters; got {name[: limits.name]!r}")
    return name
