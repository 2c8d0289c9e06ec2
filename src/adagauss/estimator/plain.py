"""What the estimator does, without scikit-learn, whose import takes as long as torch's: commands need none of it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from adagauss.core.calibration import ClassSummary
from adagauss.core.learn import Learner
from adagauss.core.learner_state import constructor_facts
from adagauss.data.images import Label
from adagauss.errors import DataError
from adagauss.estimator.answers import Asked, Prediction, Unknown, sorted_classes
from adagauss.estimator.choices import Words, json_ready, progress_reporter, told_apart, whole
from adagauss.estimator.labels import LabelsLike, check_one_kind, images_of_classes, labelled_images, plain_labels
from adagauss.estimator.together import learn_with
from adagauss.estimator.trials import best_method
from adagauss.export import export_onnx
from adagauss.inputs import ImagesLike, Wanted, pixel_statistics, read_images
from adagauss.methods import Method
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime, RuntimeConfig

Array = npt.NDArray[Any]

UNFITTED = "this {name} knows no classes yet: teach it some with partial_fit (or fit, which starts anew) first"


class PlainClassifier:
    """The methods of `IncrementalClassifier`, which says what its arguments are."""

    def __init__(
        self,
        method: str | None = None,
        preset: str | None = None,
        *,
        effort: str = "good",
        settings: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        backbone: str | None = None,
        image_size: int | None = None,
        skip_bad: bool = False,
        seed: int = 0,
        device: str = "auto",
        devices: int = 1,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.preset = preset
        self.effort = effort
        self.settings = settings
        self.epochs = epochs
        self.backbone = backbone
        self.image_size = image_size
        self.skip_bad = skip_bad
        self.seed = seed
        self.device = device
        self.devices = devices
        self.verbose = verbose

    def fit(self, images: ImagesLike, labels: LabelsLike | None = None) -> Self:
        """Start anew with one task; what was learned before is forgotten."""
        return self._learn(None, images, labels)

    def partial_fit(self, images: ImagesLike, labels: LabelsLike | None = None) -> Self:
        """Learn new classes, or more images of known ones, or both; on any error the classifier stays as it was."""
        return self._learn(getattr(self, "learner_", None), images, labels)

    def predict(self, images: ImagesLike, unknown: Unknown = None) -> Array:
        """The class of each image; of a folder, of all images in it and below, sorted by path.

        With ``unknown``, None stands for "none of the classes I know": True says so of 5 % of images whose class is
        known, a number between 0 and 1 of this share. The array then holds objects.
        """
        return self._ask(images)[1].labels(unknown)

    def predict_proba(self, images: ImagesLike) -> npt.NDArray[np.float64]:
        """(N, C) class probabilities, columns as in ``classes_``."""
        return self._ask(images)[1].probabilities

    def prediction_sets(self, images: ImagesLike, coverage: float = 0.9) -> list[list[Label]]:
        """For each image, the classes among which the right one is with this probability, likeliest first."""
        asked = self._ask(images)[1]
        return asked.state.sets(asked.features, coverage)

    def classify(self, images: ImagesLike, top: int = 3, unknown: Unknown = None) -> list[Prediction]:
        """One answer per image: its name, the most probable class, and the ``top`` classes with probabilities.

        With ``unknown``, as in `predict`, the label of an image of no known class is None.
        """
        top = whole("top", top, least=1)
        names, asked = self._ask(images)
        return asked.predictions(names, top, unknown)

    def ood_score(self, images: ImagesLike) -> npt.NDArray[np.float64]:
        """(N,) how strange each image is: the share of images of known classes that look less strange."""
        asked = self._ask(images)[1]
        return np.asarray(asked.state.ood_score(asked.features).cpu().numpy(), dtype=np.float64)

    def summary(self) -> list[ClassSummary]:
        """Of each class: images learned, share recognised while left out, and what they were taken for."""
        known = self._fitted().state
        found = known.evidence.summary(known.classes)
        return [found[column] for column in sorted_classes(known)[0]]

    def forget(self, *classes: Label, images: Any = None) -> Self:
        """Forget classes. What each method keeps of them, and what ``images`` of them change: see `Learner.forget`.

        Args:
            classes: the labels.
            images: their images again, in a folder with a folder for each class, or as a mapping from each class to its
                images; for one class, also its images alone.
        """
        learner = self._fitted()
        data = None if images is None else images_of_classes(classes, images, self._wanted(learner))
        with self._reporting(learner):
            learner.forget(classes, data)
        return self

    def rename(self, old: Label, new: Label) -> Self:
        """Call a class otherwise."""
        learner = self._fitted()
        check_one_kind([*learner.classes, *plain_labels([new])])
        learner.rename(old, new)
        return self

    def merge_classes(self, into: Label, *others: Label) -> Self:
        """Make one class of several; ``into`` is one of them or a new name."""
        learner = self._fitted()
        check_one_kind([*learner.classes, *plain_labels([into])])
        learner.merge_classes(into, others)
        return self

    def merge(self, other: PlainClassifier) -> Self:
        """Take in what another classifier with the same features knows; it stays as it is. See `Learner.merge`."""
        learner = self._fitted()
        if not isinstance(other, PlainClassifier):
            raise DataError(f"only an IncrementalClassifier can be merged, not {type(other).__name__}")
        check_one_kind([*learner.classes, *other._fitted().classes])
        learner.merge(other.learner_)
        return self

    def empty_like(self) -> Self:
        """Another classifier with the same features that knows no class: to be taught elsewhere, and merged."""
        other = type(self)(**self.parameters())
        other.learner_ = self._fitted().empty_like()
        return other

    def score(
        self, images: ImagesLike, labels: LabelsLike | None = None, sample_weight: npt.ArrayLike | None = None
    ) -> float:
        """Share of images whose class is predicted rightly."""
        learner = self._fitted()
        data = labelled_images(images, labels, self._wanted(learner))
        known = set(learner.classes)
        unknown = [label for label in data.classes if label not in known]
        if unknown:
            raise DataError(f"class {unknown[0]!r} was never taught, so no prediction of it can be right: leave it out")
        guesses = Asked.of(learner, data.images, self._reporter()).labels(None).tolist()
        hits = [guess == truth for guess, truth in zip(guesses, data.labels, strict=True)]
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        return float(np.average(hits, weights=weights))

    def save(self, path: Path | str) -> None:
        """Write all that is needed to predict and to go on learning into one file; no image is in it."""
        parameters = json_ready(self.parameters())
        learner = self._fitted()
        learner.save(path, about={**learner.about, "estimator": parameters})

    def export(self, path: Path | str) -> None:
        """Write an ONNX file that predicts without this library; see `adagauss.export.export_onnx` (extra ``onnx``)."""
        learner = self._fitted()
        with self._reporting(learner):
            export_onnx(learner, path)

    @classmethod
    def load(cls, path: Path | str, device: str = "auto") -> Self:
        """A classifier from the file of `save`, or from one of a `Learner`, which names no method for a new `fit`.

        Where and how it computes, and whether it speaks or skips bad images, is not a matter of the file.
        """
        known = constructor_facts(Path(path), _names(cls))
        classifier = cls(**{**known, "device": device, "devices": 1, "verbose": False, "skip_bad": False})
        classifier.learner_ = Learner.load(path, classifier._runtime())
        return classifier

    @property
    def classes_(self) -> Array:
        """The classes learned so far, sorted; the columns of `predict_proba`."""
        learner: Learner = self.learner_ if hasattr(self, "learner_") else self._fitted()
        return sorted_classes(learner.state)[1]

    def _learn(self, learner: Learner | None, images: ImagesLike, labels: LabelsLike | None) -> Self:
        images, photographs = told_apart(images)
        if learner is None:  # settings are checked before images are read
            words = Words(self.method, self.preset, self.effort, self.settings, self.epochs, self.backbone)
            methods = words.methods(photographs)
        data = labelled_images(images, labels, self._wanted(learner))
        if learner is None:
            reporter = self._reporter()
            statistics = pixel_statistics(data.images, reporter)

            def learner_of(method: Method) -> Learner:
                return Learner(method, data.images.shape, *statistics, self._runtime())

            learner = learner_of(best_method(methods, data, learner_of, reporter))
        check_one_kind([*learner.classes, *data.classes])
        with self._reporting(learner):
            report = learn_with(whole("devices", self.devices, least=1), learner, data)
        if not self.verbose:  # a reporter has shown them otherwise
            for text in report.warnings:
                warnings.warn(text, stacklevel=3)
        self.learner_ = learner
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "learner_") and bool(self.learner_.classes)

    def parameters(self) -> dict[str, Any]:
        """What it was made with, by name."""
        return {name: getattr(self, name) for name in _names(type(self))}

    def _fitted(self) -> Learner:
        if not self.__sklearn_is_fitted__():
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(UNFITTED.format(name=type(self).__name__))
        return self.learner_

    def _ask(self, images: ImagesLike) -> tuple[tuple[str, ...], Asked]:
        """Names of images, and the images put to what is known now."""
        learner = self._fitted()
        read = read_images(images, self._wanted(learner))
        return read.names, Asked.of(learner, read.images, self._reporter())

    def _wanted(self, learner: Learner | None) -> Wanted:
        size = None if self.image_size is None else whole("image_size", self.image_size, least=1)
        shape = None if learner is None else learner.shape
        return Wanted(shape, size, skip_bad=self.skip_bad, reporter=self._reporter())

    def _runtime(self) -> Runtime:
        return Runtime(RuntimeConfig.of({"device": self.device}), whole("seed", self.seed))

    def _reporter(self) -> Reporter:
        return progress_reporter(self.verbose)

    @contextmanager
    def _reporting(self, learner: Learner) -> Iterator[None]:
        """Shows progress meanwhile; a terminal is not kept, so that the classifier can be pickled."""
        learner.runtime.reporter = self._reporter()
        try:
            yield
        finally:
            learner.runtime.reporter = Reporter()


def _names(kind: type[PlainClassifier]) -> list[str]:
    """The arguments that a classifier is made with."""
    return [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
