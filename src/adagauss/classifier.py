"""`IncrementalClassifier`: image classification that learns new classes over time, with scikit-learn's interface."""

from __future__ import annotations

import inspect
import json
import math
import operator
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adagauss.backbones.registry import backbone_info
from adagauss.core.calibration import ClassSummary
from adagauss.core.config import Layer
from adagauss.core.learn import Learner
from adagauss.core.predictor import Prediction, PredictionBatch, Unknown
from adagauss.data.dataset import Trait
from adagauss.data.decode import ResizeMode
from adagauss.data.folders import folders_in
from adagauss.data.images import (
    ConcatImages,
    Label,
    LabelledImages,
    Subset,
    check_one_kind,
    evenly_spaced,
    normal_label,
)
from adagauss.data.inputs import (
    PHOTOGRAPHS,
    GroupsLike,
    ImagesLike,
    ImageSpec,
    class_folder_images,
    median_proportion,
    peek,
    pixel_statistics,
    read_images,
    relation,
)
from adagauss.deploy.onnx import export_onnx
from adagauss.errors import CheckpointError, ConfigError, DataError, unknown_name
from adagauss.methods import Method, make_method
from adagauss.methods.base import trait_layers
from adagauss.utils.progress import Reporter, reporter_for
from adagauss.utils.runtime import Runtime, RuntimeConfig

Array = npt.NDArray[Any]
LabelsLike = Iterable[Any] | Tensor | str | int | float | np.generic
"""One label per image, or one label for all."""
Settings = Mapping[str, Any]

PRETRAINED = "efficientnet_lite0"
FIXED_BACKBONE: Settings = {
    "backbone.train_blocks": "none",
    "backbone.bottleneck_init": "pca",
    "representation.full_rate": "bottleneck",
    "representation.label_augmentation.kind": "none",
    "augmentation.crop_padding": 0,
    "augmentation.resized_crop": False,
    "augmentation.brightness": 0.0,
    "augmentation.policy": "none",
    "augmentation.cutout": 0,
    "drift.min_steps": 500,  # a bottleneck of unit variance moves: an adapter of few steps loses old classes
}
"""Settings of a method that trains a network, if that is pretrained: only a bottleneck learns, from cached features."""
WIDE = 1.5
"""Median ratio of longer to shorter side above which ``resize_mode="auto"`` compares modes."""
PROBE_IMAGES = 300
"""Images of the first task on which it compares them."""


@dataclass(eq=False, repr=False)
class IncrementalClassifier:
    """Learns image classes task by task and stores no image of earlier tasks.

    Images are the path of a file or a folder, PIL images, arrays or tensors of any common layout, or lists and
    generators of these; see `adagauss.data.inputs`. Images of other sizes than the first ones are resized to their
    size, as files are. Labels are text or numbers: one per image, or one for all images; a folder with a folder of
    images for each class needs none.

    Settings take effect when learning starts, with `fit` or the first `partial_fit`; ``verbose`` and ``skip_bad`` at
    any time.

    Args:
        method: name of a method, as `adagauss list methods` shows them. None takes one that trains nothing: a
            linear classifier on a pretrained network and a dictionary of image patches (``analytic``) where the extra
            ``pretrained`` is installed, else ridge regression on the patches (``analytic-patches``).
        preset: one of its presets; None takes its default one.
        effort: ``good`` is the method above; ``quick`` takes about half its time with a pretrained network.
        settings: single settings by dotted name, e.g. ``{"classifier.shrinkage": 1.0}``.
        epochs: epochs per task; None leaves the method's own.
        backbone: name of a network; None leaves the method's own. A pretrained one is not trained further, except for a
            bottleneck that starts as the principal components of the first task's features, unless ``settings`` change
            that (``{"backbone.train_blocks": "all", "backbone.bottleneck_init": "random"}``).
        image_size: side in pixels of the squares that the first images are resized to. None: images in memory that
            all have one size of at most 224 pixels keep it; others become squares of 224 pixels, or less if they are
            smaller.
        resize_mode: how images of other proportions are resized: ``crop`` uses the largest centred part, ``stretch``
            uses the whole image and changes its proportions, ``pad`` uses the whole image with grey borders. ``auto``
            is ``crop``, unless most images of the first task are longer than 3:2: then it compares ``crop`` and
            ``stretch`` on up to 300 of them by leave-one-out.
        skip_bad: skip images that cannot be decoded, with one warning, instead of raising an error. Predictions are
            then for the other images only; `classify` names them.
        seed: seed of all randomness; the same seed and data give the same classifier.
        device: ``auto``, ``cpu``, ``cuda``, ...
        verbose: show progress on standard error, or in the notebook; a `Reporter` receives it instead.

    Attributes:
        learner_: the `Learner` at work.

    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> images, labels = load_digits().images / 16, load_digits().target
    >>> classifier = IncrementalClassifier("analytic-patches", settings={"backbone.options.filters": 50})
    >>> for task in ([0, 1], [2, 3]):
    ...     chosen = np.isin(labels, task)
    ...     classifier = classifier.partial_fit(images[chosen], labels[chosen])
    >>> classifier.classes_.tolist()
    [0, 1, 2, 3]
    >>> classifier.score(images[labels < 4], labels[labels < 4]) > 0.98
    True
    """

    method: str | None = None
    preset: str | None = None
    _: KW_ONLY
    effort: str = "good"
    settings: Settings | None = None
    epochs: int | None = None
    backbone: str | None = None
    image_size: int | None = None
    resize_mode: str = "auto"
    skip_bad: bool = False
    seed: int = 0
    device: str = "auto"
    verbose: bool | Reporter = False
    learner_: Learner = field(init=False)

    # ------------------------------------------------------------------------------------------------------- learning

    def fit(self, images: ImagesLike, labels: LabelsLike | None = None, *, groups: GroupsLike = None) -> Self:
        """Learn one task from scratch; everything learned before is dropped."""
        return self._learn(None, images, labels, groups)

    def partial_fit(self, images: ImagesLike, labels: LabelsLike | None = None, *, groups: GroupsLike = None) -> Self:
        """Learn new classes, more images of known ones, or both; an error leaves the classifier unchanged.

        Args:
            images: of any kind, or a folder of class folders.
            labels: one per image, or one for all.
            groups: one value per image: images with the same value show the same object, and are held out together
                when accuracies, prediction sets and scores of unknown images are estimated. For files, also a regular
                expression: its first group, or its whole match, in the path below the class folder is the value. None
                detects near-duplicates.
        """
        return self._learn(getattr(self, "learner_", None), images, labels, groups)

    def _learn(
        self, learner: Learner | None, images: ImagesLike, labels: LabelsLike | None, groups: GroupsLike
    ) -> Self:
        images, first = peek(images)
        # Settings are checked before images are read.
        method = self._method(photographs=isinstance(first, PHOTOGRAPHS)) if learner is None else None
        mode, data = self._labelled(learner, images, labels, groups)
        if method is not None:
            learner = self._new_learner(method, data)
            learner.resize_mode = mode
        assert learner is not None
        check_one_kind([*learner.classes, *data.classes])
        with self._reporting(learner):
            learner.learn(data)
        self.learner_ = learner
        return self

    def _labelled(
        self, learner: Learner | None, images: ImagesLike, labels: LabelsLike | None, groups: GroupsLike
    ) -> tuple[ResizeMode, LabelledImages]:
        """Read labelled images; the first ones decide the resize mode if it is ``auto``."""
        spec = self._spec(learner)
        known = (*get_args(ResizeMode), "auto")
        if self.resize_mode not in known:
            raise unknown_name("resize mode", self.resize_mode, known)
        if learner is None and self.resize_mode != "auto":
            spec = replace(spec, resize_mode=cast(ResizeMode, self.resize_mode))
        data = labelled_images(images, labels, spec, groups)
        squares = data.images.shape[1] == data.images.shape[2]
        wide = self.resize_mode == "auto" and squares and (median_proportion(images) or 1) >= WIDE
        if learner is not None or not wide:
            return spec.resize_mode, data
        whole = labelled_images(images, labels, replace(spec, resize_mode="stretch"), groups)
        hits = [self._probe(one) for one in (data, whole)]
        mode: ResizeMode = "crop" if hits[0] > hits[1] else "stretch"
        self._reporter().message(f"most images are longer than 3:2; resize mode: {mode}")
        return mode, data if mode == "crop" else whole

    def _probe(self, data: LabelledImages) -> float:
        """The share of correct leave-one-out predictions on a sample with the quick method; 0 if unknown."""
        rows = torch.argsort(data.targets, stable=True)[evenly_spaced(len(data), PROBE_IMAGES)]
        groups = None if data.groups is None else data.groups[rows]
        sample = LabelledImages(Subset(data.images, rows), data.targets[rows], data.classes, groups)
        if len(data.classes) < 2 or int(sample.counts().min()) < 2:
            return 0.0
        from adagauss.analytic.classifier import AnalyticScorer

        name, settings = quick_method()
        learner = self._new_learner(make_method(name, settings=settings), sample)
        learner.learn(sample)
        choice = cast(AnalyticScorer, learner.state.scorer).choice
        return float(choice.hits[choice.best]) / max(1, int(choice.images))

    def _new_learner(self, method: Method, data: LabelledImages) -> Learner:
        statistics = pixel_statistics(data.images, self._reporter())
        return Learner(method, data.images.shape, *statistics, self._runtime())

    def _method(self, photographs: bool) -> Method:
        """Return the method that the arguments describe."""
        name = self.method
        effort_settings: Settings = {}
        if self.effort == "quick":
            if self.method or self.preset or self.backbone:
                raise ConfigError("effort='quick' chooses the method itself: leave method, preset and backbone out")
            name, effort_settings = quick_method()
        elif self.effort != "good":
            raise unknown_name("effort", self.effort, ("quick", "good"))
        if not isinstance(self.settings, Mapping | None):
            raise ConfigError(f"settings must be a dictionary of dotted names and values; got {self.settings!r}")
        own = {**({} if self.backbone is None else {"backbone.name": self.backbone}), **(self.settings or {})}
        epochs = None if self.epochs is None else as_int("epochs", self.epochs)
        layers = [*(trait_layers([Trait.PHOTOGRAPHS]) if photographs else []), Layer("effort", effort_settings)]
        if "backbone.name" in own and backbone_info(own["backbone.name"]).carries_weights:
            layers.append(Layer("pretrained backbone", FIXED_BACKBONE, strict=False))
        name = name or default_method()
        method = make_method(name, self.preset, own, layers, epochs)
        if epochs is not None and not method.trains:
            raise ConfigError(f"the method {name!r} trains nothing: leave epochs out")
        return method

    # ----------------------------------------------------------------------------------------------------- predictions

    def predict(self, images: ImagesLike, unknown: Unknown = None) -> Array:
        """Return the class of each image; of a folder, of all images in it and below, sorted by path.

        With ``unknown``, None marks images that seem to show none of the known classes. Its value is the target
        false-positive rate: True is 0.05. The array then holds objects.
        """
        return self._predictions(images, unknown)[1].labels(unknown)

    def predict_proba(self, images: ImagesLike) -> npt.NDArray[np.float64]:
        """Return (N, C) class probabilities, columns as in ``classes_``."""
        return self._predictions(images)[1].probabilities

    def prediction_sets(self, images: ImagesLike, coverage: float = 0.9) -> list[list[Label]]:
        """Return, for each image, the classes that contain the right one with this probability, best first."""
        return self._predictions(images)[1].prediction_sets(coverage)

    def classify(self, images: ImagesLike, top: int = 3, unknown: Unknown = None) -> list[Prediction]:
        """Return one `Prediction` per image: its name, the most probable class, and the ``top`` classes.

        With ``unknown``, as in `predict`, the label of an image of no known class is None.
        """
        top = as_int("top", top, least=1)
        names, found = self._predictions(images, unknown)
        return found.named(names, top, unknown)

    def ood_score(self, images: ImagesLike) -> npt.NDArray[np.float64]:
        """Return (N,) out-of-distribution scores: the share of images of known classes that look more typical."""
        score = self._predictions(images)[1].ood_score()
        return np.asarray(score.cpu().numpy(), dtype=np.float64)

    def score(
        self, images: ImagesLike, labels: LabelsLike | None = None, sample_weight: npt.ArrayLike | None = None
    ) -> float:
        """Return the accuracy."""
        learner = self._fitted()
        data = labelled_images(images, labels, self._spec(learner))
        if never_taught := [label for label in data.classes if label not in set(learner.classes)]:
            raise DataError(
                f"class {never_taught[0]!r} was never taught, so no prediction of it can be right: leave it out"
            )
        predicted = learner.predictions(data.images, self._reporter()).labels().tolist()
        hits = [label == truth for label, truth in zip(predicted, data.labels, strict=True)]
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
        return float(np.average(hits, weights=weights))

    def _predictions(self, images: ImagesLike, unknown: Unknown = None) -> tuple[tuple[str, ...], PredictionBatch]:
        learner = self._fitted()
        if text := learner.state.predictor.unknown_warning(unknown):
            warnings.warn(text, stacklevel=3)
        read = read_images(images, self._spec(learner))
        return read.names, learner.predictions(read.images, self._reporter())

    @property
    def classes_(self) -> Array:
        """The classes learned so far, sorted; the columns of `predict_proba`."""
        learner = self.learner_ if hasattr(self, "learner_") else self._fitted()
        classes: list[Any] = learner.classes
        return np.array(sorted(classes))

    # --------------------------------------------------------------------------------------------------------- classes

    def summary(self) -> list[ClassSummary]:
        """Return, for each class, the images learned, the held-out accuracy, and its most frequent confusions."""
        found: list[Any] = self._fitted().summary()
        return sorted(found, key=lambda one: one.label)

    def forget(self, *classes: Label, images: Any = None) -> Self:
        """Forget classes. What remains of them, and the effect of ``images``, depends on the method: `Learner.forget`.

        Args:
            classes: the labels.
            images: images of the classes, to remove them exactly: a folder with a folder for each class, or a mapping
                from each class to its images; for one class, also its images alone.
        """
        learner = self._fitted()
        data = None if images is None else images_of_classes(classes, images, self._spec(learner))
        with self._reporting(learner):
            learner.forget(classes, data)
        return self

    def rename(self, old: Label, new: Label) -> Self:
        """Rename a class."""
        learner = self._fitted()
        check_one_kind([*learner.classes, *plain_labels([new])])
        learner.rename(old, new)
        return self

    def merge_classes(self, into: Label, *others: Label) -> Self:
        """Merge classes into one; ``into`` is one of them or a new name."""
        learner = self._fitted()
        check_one_kind([*learner.classes, *plain_labels([into])])
        learner.merge_classes(into, others)
        return self

    def merge(self, other: IncrementalClassifier) -> Self:
        """Add everything that another classifier with the same features has learned. See `Learner.merge`."""
        learner = self._fitted()
        if not isinstance(other, IncrementalClassifier):
            raise DataError(f"only an IncrementalClassifier can be merged, not {type(other).__name__}")
        check_one_kind([*learner.classes, *other._fitted().classes])
        learner.merge(other.learner_)
        return self

    def empty_like(self) -> Self:
        """Return a classifier with the same features and no classes: to teach elsewhere, and merge."""
        other = type(self)(**self.get_params())
        other.learner_ = self._fitted().empty_like()
        return other

    # ----------------------------------------------------------------------------------------------------------- files

    def save(self, path: Path | str) -> None:
        """Write everything needed to predict and to continue learning into one file; it holds no image."""
        learner = self._fitted()
        learner.save(path, about={**learner.about, "estimator": self.stored_params()})

    @classmethod
    def load(cls, path: Path | str, device: str = "auto") -> Self:
        """Load the file of `save`, or the file of a `Learner`, which names no method for a new `fit`.

        ``device``, ``verbose`` and ``skip_bad`` are not read from the file.
        """
        learner = Learner.load(path, Runtime(RuntimeConfig.of({"device": device})))
        stored, known = learner.about.get("estimator", {}), set(cls._param_names())
        if not isinstance(stored, dict) or not stored.keys() <= known | {"devices"}:  # of version 0.2.0
            raise CheckpointError(
                f"{path} does not fit the learner it describes: about.estimator does not hold the arguments of a "
                "classifier"
            )
        here = {"device": device, "verbose": False, "skip_bad": False}
        params = {"seed": learner.runtime.seed, **stored, **here}
        classifier = cls(**{name: params[name] for name in params.keys() & known})
        classifier.learner_ = learner
        return classifier

    def export(self, path: Path | str) -> None:
        """Write an ONNX file that predicts without this library; see `adagauss.deploy.onnx` (extra ``onnx``)."""
        learner = self._fitted()
        with self._reporting(learner):
            export_onnx(learner, path)

    # ---------------------------------------------------------------------------------------- scikit-learn's interface

    # scikit-learn is not a base class: its import takes 1.2 s, and most commands do not need it.

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name."""
        return {name: getattr(self, name) for name in self._param_names()}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments; they take effect when learning starts."""
        for name, value in params.items():
            if name not in self._param_names():
                raise unknown_name("parameter", name, self._param_names())
            setattr(self, name, value)
        return self

    def stored_params(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON-ready values; other objects as text."""

        def plain(value: Any) -> Any:
            return value.item() if isinstance(value, np.generic) else str(value)

        params = {**self.get_params(), "verbose": bool(self.verbose)}
        stored: dict[str, Any] = json.loads(json.dumps(params, default=plain))
        return stored

    @classmethod
    def _param_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def __repr__(self) -> str:
        default = inspect.signature(type(self).__init__).parameters
        changed = {name: value for name, value in self.get_params().items() if value != default[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "learner_") and bool(self.learner_.classes)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(two_d_array=False, three_d_array=True),
        )

    def _fitted(self) -> Learner:
        if hasattr(self, "learner_") and any(self.learner_.state.tasks):
            return self.learner_
        from sklearn.exceptions import NotFittedError

        raise NotFittedError(
            f"this {type(self).__name__} knows no classes yet: teach it some with partial_fit (or fit, which starts "
            "from scratch) first"
        )

    def _spec(self, learner: Learner | None) -> ImageSpec:
        size = None if self.image_size is None else as_int("image_size", self.image_size, least=1)
        shape = None if learner is None else learner.shape
        return ImageSpec(
            shape,
            size,
            skip_bad=self.skip_bad,
            reporter=self._reporter(),
            resize_mode="crop" if learner is None else learner.resize_mode,
        )

    def _runtime(self) -> Runtime:
        return Runtime(RuntimeConfig.of({"device": self.device}), as_int("seed", self.seed))

    def _reporter(self) -> Reporter:
        if isinstance(self.verbose, Reporter):
            return self.verbose
        return reporter_for() if self.verbose else Reporter()

    @contextmanager
    def _reporting(self, learner: Learner) -> Iterator[None]:
        """Report progress inside; the reporter is dropped afterwards, so that the classifier can be pickled."""
        learner.runtime.reporter = self._reporter()
        try:
            yield
        finally:
            learner.runtime.reporter = Reporter()


# ------------------------------------------------------------------------------------------------------------ methods


def default_method() -> str:
    """Return the method for photographs on a CPU: the most accurate one that trains nothing."""
    if backbone_info(PRETRAINED).available:
        return "analytic"
    warnings.warn(
        "no pretrained network is installed, so image patches are used; photographs are recognised far better with "
        "one: pip install 'adagauss[pretrained]'",
        stacklevel=2,
    )
    return "analytic-patches"


def quick_method() -> tuple[str, Settings]:
    """Return the method of ``effort="quick"`` and its settings."""
    if backbone_info(PRETRAINED).available:
        return "analytic-pretrained", {"backbone.input_size": 160}
    return "analytic-patches", {"backbone.options.filters": 200}


# ------------------------------------------------------------------------------------------------------------ labels


def labelled_images(
    images: ImagesLike, labels: LabelsLike | None, spec: ImageSpec, groups: GroupsLike = None
) -> LabelledImages:
    """Read images with their labels; without labels, a folder of class folders."""
    path = Path(images) if isinstance(images, str | os.PathLike) else None
    if labels is None:
        if path is None:
            raise DataError("labels are missing: give one per image, or the path of a folder of class folders")
        return class_folder_images(path, spec, groups)
    one = isinstance(labels, str | int | float | np.generic) or (isinstance(labels, np.ndarray) and labels.ndim == 0)
    if path is not None and not one and path.expanduser().is_dir():
        raise DataError("a folder of class folders brings its own labels: give none, or one label for all its images")
    listed = None if one else plain_labels(labels)
    shape = tuple(getattr(images, "shape", ()))
    if listed is not None and len(shape) == 2 and shape[0] == len(listed) > 1:
        raise DataError(
            f"numbers of shape {shape} are one grey image, and there are {len(listed)} labels: for a table with a row "
            "of features per image use adagauss.GaussianBayes"
        )
    read = read_images(images, spec, None if listed is None else len(listed))
    if listed is None:
        listed = plain_labels([labels]) * read.given
    if len(listed) != read.given:
        raise DataError(f"{read.given} images but {len(listed)} labels: give one label per image")
    kept = [listed[position] for position in read.kept.tolist()]
    if lost := [label for label in dict.fromkeys(listed) if label not in set(kept)]:
        raise DataError(f"none of the images of class {lost[0]!r} can be decoded: repair them or leave the class out")
    data = LabelledImages.from_labels(read.images, kept)
    return replace(data, groups=read.grouped(groups), grouped_by=relation(groups))


def images_of_classes(classes: Sequence[Label], images: Any, spec: ImageSpec) -> LabelledImages:
    """Read images of exactly these classes: a mapping from each to its images, or a folder with a folder for each.

    For one class it may also be its images alone.
    """
    given, classes = images, plain_labels(classes)
    if isinstance(images, str | os.PathLike):
        folder, found = Path(images).expanduser(), dict[str, list[Path]]()
        for path in folders_in(folder) if folder.is_dir() else []:
            found.setdefault(str(normal_label(path.name)), []).append(path)
        if all(str(label) in found for label in classes):
            given = {label: found[str(label)] for label in classes}
    if not isinstance(given, Mapping):
        if len(classes) != 1:
            raise DataError(
                "for several classes, give a folder that has a folder of images for each of them (in Python, "
                "{class: images} works as well)"
            )
        given = {classes[0]: given}
    given = {normal_label(label): one for label, one in given.items()}
    if set(given) != set(classes):
        raise DataError(f"images are given for {sorted(map(str, given))}, but the classes are {[*map(str, classes)]}")
    parts = [read_images(given[label], spec).images for label in classes]
    targets = torch.cat([torch.full((len(part),), target) for target, part in enumerate(parts)])
    return LabelledImages(ConcatImages(parts), targets, tuple(classes))


def plain_labels(labels: Any) -> list[Label]:
    """Convert labels to Python's own text and numbers."""
    if not isinstance(labels, Iterable):
        raise DataError(f"labels must be a sequence, one per image, or one label for all; got {labels!r}")
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    plain = [normal_label(value.item() if isinstance(value, np.generic | Tensor) else value) for value in values]
    for label in plain:
        if not isinstance(label, str | int | float) or (isinstance(label, float) and not math.isfinite(label)):
            raise DataError(f"labels must be text or numbers, one per image; got {label!r}")
    return plain


def as_int(name: str, value: object, least: int | None = None) -> int:
    """Convert any integer type to int; raise a `ConfigError` that names the argument."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} must be a whole number; got {value!r}") from None
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}; got {number}")
    return number
