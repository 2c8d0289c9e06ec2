"""IncrementalClassifier: a learner of images in scikit-learn's manner, one `partial_fit` a task."""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from adagauss.backbones.registry import backbone_info
from adagauss.checkpoint import load_tensors
from adagauss.data.dataset import Trait
from adagauss.data.images import ArrayImages, Images, Label, LabelledImages
from adagauss.errors import ConfigError, DataError
from adagauss.knowledge import Knowledge
from adagauss.learner import Learner
from adagauss.methods import Method, make_method
from adagauss.methods.traits import trait_layers
from adagauss.progress import Reporter, reporter_for
from adagauss.runtime import Runtime, RuntimeConfig

Array = npt.NDArray[Any]
ImagesLike = npt.ArrayLike | Tensor | Path
"""Pixels, or (as str or Path) a folder."""
LabelsLike = Iterable[Any] | Tensor

STATISTICS_BATCH = 256
PRETRAINED = "efficientnet_lite0"


class IncrementalClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn carries no types
    """Learns image classes task by task, keeping no image of the tasks before.

    Images are arrays or tensors of shape (N, C, H, W), (N, H, W, C) or (N, H, W), uint8 in 0..255 or floats in 0..1;
    or the path of a folder with a folder of image files for each class, whose name is then the label. Labels are text
    or numbers. All images must have the size of the first ones; those in files are brought to it.

    Settings take effect when learning starts, with `fit` or the first `partial_fit`; ``verbose`` at any time.

    Args:
        method: name of a method, as `adagauss methods` lists them. None takes one that trains nothing: discriminant
            analysis on a pretrained network (``exact-pretrained``) where the extra ``pretrained`` is installed, else
            ridge regression on a dictionary of image patches (``exact``).
        preset: one of its presets; None takes its default one.
        settings: single settings by dotted name, e.g. ``{"classifier.shrinkage": 1.0}``.
        epochs: length of every training of a task; None leaves the method's own.
        backbone: name of a network; None leaves the method's own.
        image_size: side in pixels that images of a first folder are resized to; None means 224.
        seed: where all randomness comes from; the same seed and data give the same classifier.
        device: ``auto``, ``cpu``, ``cuda``, ...
        verbose: show progress on standard error.

    Attributes:
        learner_: the `Learner` at work.

    >>> from sklearn.datasets import load_digits
    >>> images, labels = load_digits().images / 16, load_digits().target
    >>> classifier = IncrementalClassifier("exact", settings={"backbone.options.filters": 50})
    >>> for task in ([0, 1], [2, 3]):
    ...     chosen = np.isin(labels, task)
    ...     classifier = classifier.partial_fit(images[chosen], labels[chosen])
    >>> classifier.classes_.tolist()
    [0, 1, 2, 3]
    >>> classifier.score(images[labels < 4], labels[labels < 4]) > 0.98
    True
    """

    def __init__(
        self,
        method: str | None = None,
        preset: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        backbone: str | None = None,
        image_size: int | None = None,
        seed: int = 0,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.preset = preset
        self.settings = settings
        self.epochs = epochs
        self.backbone = backbone
        self.image_size = image_size
        self.seed = seed
        self.device = device
        self.verbose = verbose

    def fit(self, images: ImagesLike, labels: LabelsLike | None = None) -> Self:
        """Start anew with one task; what was learned before is forgotten."""
        return self._learn(None, images, labels)

    def partial_fit(self, images: ImagesLike, labels: LabelsLike | None = None) -> Self:
        """Learn the next task, of new classes only; on any error the classifier stays as it was."""
        return self._learn(getattr(self, "learner_", None), images, labels)

    def predict(self, images: ImagesLike) -> Array:
        """The class of each image; of a folder, of all images in it and below, sorted by path."""
        check_is_fitted(self, "learner_")
        return self._predict(self._images(images))

    def predict_proba(self, images: ImagesLike) -> npt.NDArray[np.float64]:
        """(N, C) class probabilities, columns as in ``classes_``."""
        check_is_fitted(self, "learner_")
        scores, _ = self._scores(self._images(images))
        return np.asarray(torch.softmax(scores.double(), dim=1).cpu().numpy())

    def score(
        self, images: ImagesLike, labels: LabelsLike | None = None, sample_weight: npt.ArrayLike | None = None
    ) -> float:
        """Share of images whose class is predicted rightly."""
        check_is_fitted(self, "learner_")
        data = self._labelled(self.learner_, images, labels)
        known = set(self.learner_.classes)
        unknown = [label for label in data.classes if label not in known]
        if unknown:
            raise DataError(f"class {unknown[0]!r} was never taught, so no prediction of it can be right: leave it out")
        hits = [guess == truth for guess, truth in zip(self._predict(data.images).tolist(), data.labels, strict=True)]
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        return float(np.average(hits, weights=weights))

    def save(self, path: Path | str) -> None:
        """Write all that is needed to predict and to go on learning into one file; no image is in it."""
        check_is_fitted(self, "learner_")
        parameters = json.loads(json.dumps(self.get_params(deep=False), default=_json_ready))
        self.learner_.save(path, about={"estimator": parameters})

    @classmethod
    def load(cls, path: Path | str, device: str = "auto") -> Self:
        """A classifier from the file of `save`, or from one of a `Learner`, which names no method for a new `fit`."""
        _, facts = load_tensors(Path(path), "learner")
        classifier = cls(**{"seed": facts["seed"], **facts["about"].get("estimator", {}), "device": device})
        classifier.learner_ = Learner.load(path, classifier._runtime())
        return classifier

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags

    def _learn(self, learner: Learner | None, images: ImagesLike, labels: LabelsLike | None) -> Self:
        method = self._method(images) if learner is None else None  # settings are checked before images are read
        data = self._labelled(learner, images, labels)
        if learner is None:
            assert method is not None
            learner = Learner(method, data.images.shape, *_pixel_statistics(data.images), self._runtime())
        _check_one_kind([*learner.classes, *data.classes])
        with self._reporting(learner):
            learner.learn(data)
        self.learner_ = learner
        return self

    @property
    def classes_(self) -> Array:
        """The classes learned so far, sorted; the columns of `predict_proba`."""
        return _sorted_classes(self.learner_.knowledge)[1]

    def _predict(self, images: Images) -> Array:
        scores, classes = self._scores(images)
        winners: Array = classes[scores.argmax(1).cpu().numpy()]
        return winners

    def _scores(self, images: Images) -> tuple[Tensor, Array]:
        """Scores and the classes of their columns, sorted, from one state: a task may be learned in the meantime."""
        learner = self.learner_
        knowledge = learner.knowledge
        runtime = Runtime(learner.runtime.config, learner.runtime.seed, self._reporter())
        columns, classes = _sorted_classes(knowledge)
        features = knowledge.features(learner.of_shape(images), runtime)
        return knowledge.scores(features)[:, columns], classes

    def _method(self, images: ImagesLike) -> Method:
        if not isinstance(self.settings, Mapping | None):
            raise ConfigError(f"settings must be a dictionary of dotted names and values; got {self.settings!r}")
        settings = dict(self.settings or {})
        if self.backbone is not None:
            settings = {"backbone.name": self.backbone, **settings}
        layers = trait_layers([Trait.PHOTOGRAPHS]) if isinstance(images, str | Path) else []
        epochs = None if self.epochs is None else _whole("epochs", self.epochs)
        method = make_method(self.method or default_method(), self.preset, settings, layers, epochs)
        if epochs is not None and not method.trains:
            raise ConfigError(f"the method {self.method or default_method()!r} trains nothing: leave epochs out")
        return method

    def _runtime(self) -> Runtime:
        return Runtime(RuntimeConfig.of({"device": self.device}), _whole("seed", self.seed))

    def _reporter(self) -> Reporter:
        if not self.verbose:
            return Reporter()
        from rich.console import Console

        return reporter_for(Console(stderr=True))

    @contextmanager
    def _reporting(self, learner: Learner) -> Iterator[None]:
        """Shows progress meanwhile; a terminal is not kept, so that the classifier can be pickled."""
        learner.runtime.reporter = self._reporter()
        try:
            yield
        finally:
            learner.runtime.reporter = Reporter()

    def _labelled(self, learner: Learner | None, images: ImagesLike, labels: LabelsLike | None) -> LabelledImages:
        if isinstance(images, str | Path):
            if labels is not None:
                raise DataError("a folder of class folders brings its own labels: give no others")
            return self._class_folders(Path(images), learner)
        if labels is None:
            raise DataError("labels are missing: give one per image, or the path of a folder of class folders")
        return LabelledImages.from_labels(_array_images(images), _plain_labels(labels))

    def _images(self, images: ImagesLike) -> Images:
        if not isinstance(images, str | Path):
            return _array_images(images)
        from adagauss.data.listing import images_below

        folder = _folder(Path(images))
        return self._files(images_below(folder, str(folder)), self.learner_)

    def _class_folders(self, folder: Path, learner: Learner | None) -> LabelledImages:
        from adagauss.data.listing import class_folders, images_below

        name = str(_folder(folder))
        members = {path.name: images_below(path, name) for path in class_folders(folder, name)}
        targets = [target for target, files in enumerate(members.values()) for _ in files]
        images = self._files([path for files in members.values() for path in files], learner)
        return LabelledImages(images, torch.tensor(targets), tuple(members))

    def _files(self, paths: list[Path], learner: Learner | None) -> Images:
        from adagauss.data.file_dataset import PHOTO_SIZE
        from adagauss.data.files import FileImages

        size = PHOTO_SIZE if self.image_size is None else _whole("image_size", self.image_size)
        channels, height, width = learner.shape if learner else (3, size, size)
        if height != width:
            raise DataError(
                f"files are read as square images, but this classifier was taught images of {height}×{width} pixels: "
                "read the files yourself and give an array"
            )
        return FileImages(paths, height, channels=channels, reporter=self._reporter())


def default_method() -> str:
    """The method for photographs on a CPU: the best there is without training."""
    if backbone_info(PRETRAINED).available:
        return "exact-pretrained"
    warnings.warn(
        "no pretrained network is installed, so image patches are used; photographs are recognised far better with "
        "one: pip install 'adagauss[pretrained]'",
        stacklevel=2,
    )
    return "exact"


def _array_images(images: npt.ArrayLike | Tensor) -> ArrayImages:
    if isinstance(images, Tensor):
        images = images.detach().cpu().numpy()
    try:
        array = np.asarray(images)
    except ValueError as error:
        raise DataError(f"images do not make one array ({error}): bring all to one size") from None
    if array.dtype.kind not in "uif":
        raise DataError(f"images must be arrays of numbers or the path of a folder; got {array.dtype} values")
    if array.dtype.kind in "ui" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    # Torch shares memory only with arrays that are writable and have no negative strides; others are copied.
    return ArrayImages(np.require(array, requirements=["C", "W"]))


def _sorted_classes(knowledge: Knowledge) -> tuple[list[int], Array]:
    """Columns of the scores in the order of the sorted classes, and these classes."""
    classes: list[Any] = knowledge.classes
    columns = sorted(range(len(classes)), key=classes.__getitem__)
    return columns, np.array([classes[column] for column in columns])


def _plain_labels(labels: LabelsLike) -> list[Label]:
    if not isinstance(labels, Iterable) or isinstance(labels, str):
        raise DataError(f"labels must be a sequence, one per image; got {labels!r}")
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    plain = [value.item() if isinstance(value, np.generic | Tensor) else value for value in values]
    for label in plain:
        if not isinstance(label, str | int | float) or label != label:
            raise DataError(f"labels must be text or numbers, one per image; got {label!r}")
    return plain


def _check_one_kind(labels: list[Label]) -> None:
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError("some labels are text and some are numbers: use one kind throughout")


def _pixel_statistics(images: Images) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, of values in 0..1: exact, from counts of the 256 levels."""
    channels = images.shape[0]
    counts = torch.zeros(channels, 256, dtype=torch.float64)
    for start in range(0, len(images), STATISTICS_BATCH):
        pixels = images.batch(torch.arange(start, min(start + STATISTICS_BATCH, len(images)))).cpu()
        counts += torch.stack([pixels[:, channel].flatten().bincount(minlength=256) for channel in range(channels)])
    shares = counts / counts.sum(1, keepdim=True)
    levels = torch.linspace(0, 1, 256, dtype=torch.float64)
    mean = shares @ levels
    std = (shares * (levels - mean.unsqueeze(1)).square()).sum(1).sqrt()
    # A channel without any contrast is left at its scale.
    return mean.tolist(), torch.where(std > 0, std, torch.ones_like(std)).tolist()


def _folder(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder: give an array of images, or a folder of class folders")
    return path


def _whole(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} must be a whole number; got {value!r}") from None


def _json_ready(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
