"""The current task for the parts of a method: its images, the network before and now, and their features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from adagauss.backbones import Extractor, Network
from adagauss.data.augment import Augmentation, horizontal_flip, to_float
from adagauss.data.images import Images, Label, LabelledImages
from adagauss.errors import NumericalError
from adagauss.runtime import Runtime
from adagauss.state import Groups
from adagauss.training import History, batch_bounds

Transform = Callable[[Tensor], Tensor]

FEATURE_BATCH = 256
"""Images per batch when features are extracted, up to `SMALL_SIDE` pixels; fewer of larger ones, so that activations
stay in the cache and memory is bounded."""
SMALL_SIDE = 56


@dataclass
class TaskReport:
    """What learning a task took."""

    history: History = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: representation, drift, memory, classifier."""

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Adds the wall time of what is done meanwhile to a stage."""
        started = perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - started


def feature_batches(images: Images) -> list[tuple[int, int]]:
    """Where the batches of feature extraction start and stop."""
    _, height, width = images.shape
    size = max(8, min(FEATURE_BATCH, FEATURE_BATCH * SMALL_SIDE**2 // (height * width)))
    return batch_bounds(len(images), size, drop_last=False)


def extract_features(
    extractor: Extractor,
    images: Images,
    runtime: Runtime,
    transform: Transform = to_float,
    *,
    prediction: bool = False,
) -> Tensor:
    """(N, S) features in evaluation mode: the only feature-extraction loop.

    ``transform`` turns uint8 pixels into floats in 0..1; ``prediction`` returns the features used for prediction.
    """
    was_training = extractor.training
    extractor.eval()
    rows = []
    forward = extractor.for_prediction if prediction else extractor
    bounds = feature_batches(images)
    with torch.inference_mode(), runtime.reporter.progress("features", len(bounds)) as advance:
        for start, stop in bounds:
            pixels = images.batch(torch.arange(start, stop)).to(runtime.device)
            rows.append(forward(transform(pixels).contiguous(memory_format=runtime.memory_format)).float())
            advance("")
    extractor.train(was_training)
    # A clone made outside inference mode can be used in training.
    return torch.cat(rows).clone() if rows else _no_features(extractor, prediction).to(runtime.device)


def _no_features(extractor: Extractor, prediction: bool) -> Tensor:
    return torch.empty(0, extractor.prediction_size if prediction else extractor.size)


class ImageBatches:
    """Shuffled, augmented batches of a task's images."""

    def __init__(
        self, data: LabelledImages, augmentation: Augmentation, runtime: Runtime, batch_size: int, drop_last: bool
    ) -> None:
        self.data = data
        self.augmentation = augmentation
        self.runtime = runtime
        self.bounds = batch_bounds(len(data), batch_size, drop_last)

    def __len__(self) -> int:
        return len(self.bounds)

    def epoch(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(len(self.data), generator=generator)
        device = self.runtime.device
        for start, stop in self.bounds:
            chosen = order[start:stop]
            pixels = self.augmentation(self.data.images.batch(chosen).to(device), generator)
            yield pixels.contiguous(memory_format=self.runtime.memory_format), self.data.targets[chosen].to(device)


class Occasion(Protocol):
    """When a classifier is made from the memory: after a task, or after a change of the classes."""

    network: Network
    runtime: Runtime

    @property
    def name(self) -> str:
        """Part of the seeds of whatever is random."""


@dataclass
class CurrentTask:
    """Task ``index``: the data that the parts of a method may use, and their only access to images.

    ``data`` holds only the images of the current task; the object is discarded after the task. Its classes are new, or
    known already: ``targets`` count within the task, `columns` says where its classes are among all.
    """

    index: int
    data: LabelledImages
    network: Network
    previous: Network | None
    augmentation: Augmentation
    runtime: Runtime
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors of earlier tasks that one part shares with others, by name."""
    known: tuple[Label, ...] = ()
    """Classes known before the task, in the order of the score columns."""
    held_out: bool = False
    """Whether these are images that the network was not trained on, so that they may judge what it learned."""
    _features: dict[tuple[bool, str | int], Tensor] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"task {self.index + 1}"

    @property
    def classes(self) -> tuple[Label, ...]:
        return self.data.classes

    @property
    def all_classes(self) -> tuple[Label, ...]:
        """Classes known after the task, in the order of the score columns: new ones come last."""
        return tuple(dict.fromkeys((*self.known, *self.classes)))

    @property
    def columns(self) -> tuple[int, ...]:
        """The score column of each class of the task."""
        position = {label: column for column, label in enumerate(self.all_classes)}
        return tuple(position[label] for label in self.classes)

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def targets(self) -> Tensor:
        return self.data.targets.to(self.runtime.device)

    @property
    def column_targets(self) -> Tensor:
        """The score column of each image's class."""
        return torch.tensor(self.columns, device=self.runtime.device)[self.targets]

    def parted(self, share: float) -> tuple[CurrentTask, CurrentTask | None]:
        """The images to train on, and a share of those of each class that is held out; None where that is nobody.

        The images that are held out are a task of their own, which brings more images of classes that are then known.
        """
        if not share:
            return self, None
        kept, held = self.data.parted(share, self.runtime.generator(self.name, "held out"))
        if not len(held):
            return self, None
        judges = replace(self, data=held, known=self.all_classes, held_out=True, _features={})
        return replace(self, data=kept, _features={}), judges

    def of_companion(self) -> CurrentTask:
        """The same images as the companion of the network sees them."""
        return replace(self, network=self.network.of_companion(), previous=None, _features={})

    def features(self, view: str | int = "test", previous: bool = False) -> Tensor:
        """Features of all images under the current (or previous) network, computed once per view.

        A view is ``test`` (images as they are), ``flip`` (mirrored) or a number: the n-th random augmentation, which is
        the same for both networks.
        """
        key = (previous, view)
        if key not in self._features:
            network = self.previous if previous else self.network
            assert network is not None, "the first task has no previous network"
            transform = self._transform(view)
            features = extract_features(network.extractor, self.data.images, self.runtime, transform)
            self._check_finite(features)
            self._features[key] = features
        return self._features[key]

    def prediction_features(self) -> Tensor:
        """Features of all images as they are used for prediction."""
        features = extract_features(self.network.extractor, self.data.images, self.runtime, prediction=True)
        self._check_finite(features)
        return features

    def blocks(self, flips: bool = False) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Blocks of positions and features, of the plain images and, with ``flips``, of the mirrored ones.

        Nothing is cached: this is for features that are too large to be stored for a whole task.
        """
        extractor = self.network.extractor.eval()
        bounds = feature_batches(self.data.images)
        with self.runtime.reporter.progress(f"{self.name}: features", len(bounds)) as advance:
            for start, stop in bounds:
                rows = torch.arange(start, stop)
                images = to_float(self.data.images.batch(rows).to(self.runtime.device))
                images = images.contiguous(memory_format=self.runtime.memory_format)
                with torch.no_grad():
                    views = [extractor(images), *([extractor(images.flip(3))] if flips else [])]
                for view in views:
                    self._check_finite(view)
                yield rows, views
                advance("")

    def pairs(self, views: int) -> tuple[Tensor, Tensor, Tensor]:
        """(old features, new features, targets) of ``views`` augmented copies of the task; 0: the plain images."""
        chosen: list[str | int] = list(range(views)) if views else ["test"]
        old = torch.cat([self.features(view, previous=True) for view in chosen])
        new = torch.cat([self.features(view) for view in chosen])
        return old, new, self.targets.repeat(len(chosen))

    def _check_finite(self, features: Tensor) -> None:
        if not bool(torch.isfinite(features).all()):
            raise NumericalError(
                f"{self.name}: features of the network are no longer finite numbers, so its training has diverged; "
                "lower the learning rate, or set clip_norm=1"
            )

    def forget_features(self) -> None:
        """Clear cached features, after the network has changed."""
        self._features.clear()

    def _transform(self, view: str | int) -> Transform:
        if view == "test":
            return to_float
        if view == "flip":
            return lambda pixels: to_float(horizontal_flip(pixels))
        generator = self.runtime.generator(self.name, "view", view)
        return lambda pixels: self.augmentation(pixels, generator)


@dataclass
class Upkeep:
    """A change of the classes after ``tasks`` tasks: what a classifier needs to follow it."""

    groups: Groups
    network: Network
    runtime: Runtime
    tasks: int
    removed: CurrentTask | None = None
    """Images of the classes that are forgotten, if they are given again."""

    def of_companion(self) -> Upkeep:
        """The same change for what is made of the features of the network's companion."""
        removed = None if self.removed is None else self.removed.of_companion()
        return replace(self, network=self.network.of_companion(), removed=removed)

    @property
    def name(self) -> str:
        return f"after task {self.tasks}"
