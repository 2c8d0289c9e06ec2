"""The current task: its images, the network before and now, and their features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from adagauss.backbones import Extractor, Network
from adagauss.core.state import ClassMap, State
from adagauss.core.train import batch_bounds
from adagauss.data.augment import Augmentation, Changes, mirrored, unchanged
from adagauss.data.images import Images, Label, LabelledImages
from adagauss.distributed.processes import Sharding
from adagauss.errors import NumericalError
from adagauss.utils.runtime import Runtime, to_device

Draw = Callable[[int], Changes]
"""Maps a batch size to the augmentation of that batch, which converts uint8 pixels to floats in 0..1."""

FEATURE_BATCH = 256
"""Images per batch of feature extraction up to `SMALL_SIDE` pixels; fewer of larger ones, to bound memory."""
SMALL_SIDE = 56
CACHED_BYTES = 2**31
"""Memory that the output of frozen layers may take to be cached for a task, with that for mirrored images."""


def feature_batch_size(images: Images) -> int:
    """How many images features are extracted from at once."""
    _, height, width = images.shape
    return max(8, min(FEATURE_BATCH, FEATURE_BATCH * SMALL_SIDE**2 // (height * width)))


def feature_batches(images: Images) -> list[tuple[int, int]]:
    """Where the batches of feature extraction start and stop."""
    return batch_bounds(len(images), feature_batch_size(images), drop_last=False)


def features_by_batch(
    extractor: Extractor,
    images: Images,
    runtime: Runtime,
    draw: Draw = unchanged,
    *,
    prediction: bool = False,
    divided: bool = True,
    title: str = "features",
    layers: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield positions and features of each batch, in evaluation mode and without gradients.

    Nothing is cached: features may be too large to be stored for a whole task. With ``divided``, each of several
    processes gets only its share of every batch. With ``layers``, these map images to what is yielded.
    """
    was_training = extractor.training
    extractor.eval()
    with runtime.reporter.progress(title, len(images)) as advance:
        for start, stop in feature_batches(images):
            own = runtime.processes.divide(stop - start).rows if divided else torch.arange(stop - start)
            changes = draw(stop - start).of(own)
            if len(own):
                pixels = changes.read(images, start + own, runtime.device)
                with torch.no_grad():
                    pixels = pixels.contiguous(memory_format=runtime.memory_format)
                    found = extractor(pixels, prediction=prediction) if layers is None else layers(pixels)
                yield start + own, found
            advance(step=stop - start)
    extractor.train(was_training)


def extract_features(
    extractor: Extractor,
    images: Images,
    runtime: Runtime,
    draw: Draw = unchanged,
    *,
    prediction: bool = False,
    layers: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """(N, S) features in evaluation mode, of images augmented by ``draw``; see `features_by_batch`.

    Several processes divide every batch, and all get all features. ``prediction`` returns the features used for
    prediction.
    """
    batches = features_by_batch(extractor, images, runtime, draw, prediction=prediction, layers=layers)
    parts = [rows.float() for _, rows in batches] or [torch.empty(0, extractor.size, device=runtime.device)]
    return divided_batches(images, runtime).all_gather(torch.cat(parts))


def divided_batches(images: Images, runtime: Runtime) -> Sharding:
    """The process of each image if every batch of `feature_batches` is divided."""
    owners = [runtime.processes.divide(stop - start).owners for start, stop in feature_batches(images)]
    return Sharding(torch.cat([torch.zeros(0, dtype=torch.long), *owners]), runtime.processes)


@dataclass
class CurrentTask:
    """Task ``index``: everything that the parts of a method may use of its images, discarded after the task.

    Classes are new or known: ``targets`` count within the task, `columns` are their score columns.
    """

    index: int
    data: LabelledImages
    network: Network
    previous: Network | None
    augmentation: Augmentation
    runtime: Runtime
    term_states: Mapping[str, State] = field(default_factory=dict)
    """The states of the loss terms after the last task by name, which other parts may read."""
    known: tuple[Label, ...] = ()
    """Classes known before the task, in the order of the score columns."""
    drift_state: State | None = None
    """The state of the drift compensation after the last task."""
    trained: dict[str, nn.Module] = field(default_factory=dict)
    """The modules that loss terms trained with the network in this task, by the name of the term."""
    whole: CurrentTask | None = None
    """The task that this is a part of, made of its images ``rows``."""
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    warnings: list[str] = field(default_factory=list)
    _features: dict[tuple[bool, str | int], Tensor] = field(default_factory=dict)
    _frozen: dict[str, Tensor] = field(default_factory=dict)

    @property
    def name(self) -> str:
        # Part of seeds and of names of snapshots: those of a part must differ from the task's.
        return f"task {self.index + 1}" + (" without some images" if self.whole is not None else "")

    def warn(self, text: str | None) -> None:
        """Store a warning for the report of the task, and show it; None does nothing."""
        if text is not None:
            self.warnings.append(text)
            self.runtime.reporter.message(text)

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

    @property
    def column_counts(self) -> Tensor:
        """The number of images of each score column."""
        return torch.bincount(self.column_targets, minlength=len(self.all_classes))

    def features(self, view: str | int = "test", previous: bool = False) -> Tensor:
        """Features of all images under the current (or previous) network, computed once per view.

        A view is ``test`` (unchanged images), ``flip`` (mirrored) or n: the n-th random augmentation, the same for
        both networks.
        """
        if self.whole is not None:
            return self.whole.features(view, previous)[self.rows.to(self.runtime.device)]
        key = (previous, view)
        if key not in self._features:
            network = self.previous if previous else self.network
            assert network is not None, "the first task has no previous network"
            extract = self._learned if self.caches_frozen else self._extracted
            self._features[key] = extract(network.extractor, view)
        return self._features[key]

    @cached_property
    def caches_frozen(self) -> bool:
        """Whether the output of the frozen layers is computed once, for images and mirrored images.

        Features of a fixed backbone always fit. Maps must fit into `CACHED_BYTES`; several processes do not exchange
        them.
        """
        if self.whole is not None:
            return self.whole.caches_frozen
        extractor, runtime = self.network.extractor, self.runtime
        if extractor.fixed or not self.augmentation.only_flips:
            return self.augmentation.only_flips
        if not (extractor.trunk.has_frozen and runtime.processes.alone):
            return False
        one = extractor.frozen(unchanged().read(self.data.images, torch.zeros(1, dtype=torch.long), runtime.device))
        return 2 * len(self.data) * one.numel() * one.element_size() <= CACHED_BYTES

    def trunk_features(self) -> Tensor:
        """Features before the bottleneck of all images."""
        if self.whole is not None:
            return self.whole.trunk_features()[self.rows.to(self.runtime.device)]
        extractor = self.network.extractor
        return self.frozen_maps() if extractor.fixed else self._extracted(extractor.without_bottleneck())

    def frozen_maps(self, view: str = "test") -> Tensor:
        """The output of the frozen layers for all images (or mirrored images, ``flip``), computed once.

        Of a fixed backbone these are the features before the bottleneck.
        """
        if view not in self._frozen:
            extractor = self.network.extractor
            self._frozen[view] = self._extracted(extractor, view, layers=extractor.frozen)
        return self._frozen[view]

    def frozen_rows(self, rows: Tensor, flips: Tensor) -> Tensor:
        """Cached output of the frozen layers for some images, mirrored where ``flips`` is true."""
        if self.whole is not None:
            return self.whole.frozen_rows(self.rows[rows], flips)
        plain = self.frozen_maps()
        maps = plain[to_device(rows, plain.device)]
        if self.augmentation.flip:
            mirrored_rows = to_device(rows[flips], plain.device)
            maps[to_device(flips.nonzero().flatten(), plain.device)] = self.frozen_maps("flip")[mirrored_rows]
        return maps.contiguous(memory_format=self.runtime.memory_format) if maps.ndim == 4 else maps

    def _learned(self, extractor: Extractor, view: str | int) -> Tensor:
        """Features of a view under a network, from the cached output of the frozen layers."""
        was_training, draw, parts = extractor.training, self._draw(view), []
        extractor.eval()
        for start, stop in feature_batches(self.data.images):
            flips = draw(stop - start).flips(stop - start)
            with torch.no_grad():
                parts.append(extractor.learned(self.frozen_rows(torch.arange(start, stop), flips)))
        extractor.train(was_training)
        return self._finite(torch.cat(parts))

    def blocks(self, divided: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Positions and features for prediction, batch by batch; see `features_by_batch`."""
        extractor, title = self.network.extractor, f"{self.name}: features"
        for rows, features in features_by_batch(
            extractor, self.data.images, self.runtime, prediction=True, divided=divided, title=title
        ):
            yield rows, self._finite(features)

    def pairs(self, views: int) -> tuple[Tensor, Tensor]:
        """The old and the new features of ``views`` augmented copies of the task; 0: the plain images."""
        chosen: list[str | int] = list(range(views)) if views else ["test"]
        old = torch.cat([self.features(view, previous=True) for view in chosen])
        new = torch.cat([self.features(view) for view in chosen])
        return old, new

    def part(self, rows: Tensor) -> CurrentTask:
        """The task with only some of its images; features are those of the whole task, computed once."""
        return replace(self, data=self.data.rows(rows), whole=self, rows=rows, _features={}, _frozen={})

    def others(self) -> CurrentTask:
        """The images of the task that are not in this part of it."""
        assert self.whole is not None, "a whole task has no other images"
        left = torch.ones(len(self.whole.data), dtype=torch.bool)
        left[self.rows] = False
        return self.whole.part(left.nonzero().flatten())

    def prediction_features(self) -> Tensor:
        """Features of all images as used for prediction."""
        extractor, holder = self.network.extractor, self.whole or self
        if (False, "test") in holder._features and not extractor.mirror:
            return self.features()
        return self._extracted(extractor, prediction=True)

    def _extracted(self, extractor: Extractor, view: str | int = "test", **settings: Any) -> Tensor:
        draw = self._draw(view)
        return self._finite(extract_features(extractor, self.data.images, self.runtime, draw, **settings))

    def _finite(self, features: Tensor) -> Tensor:
        if not bool(torch.isfinite(features).all()):
            raise NumericalError(
                f"{self.name}: features of the network are not finite, so its training has diverged; lower the "
                "learning rate, or set clip_norm=1"
            )
        return features

    def clear_features(self) -> None:
        """Clear cached features, after the network has changed."""
        self._features.clear()
        if self.whole is not None:
            self.whole.clear_features()

    def _draw(self, view: str | int) -> Draw:
        if not isinstance(view, int):
            return mirrored if view == "flip" else unchanged
        generator = self.runtime.generator(self.name, "view", view)
        _, height, width = self.data.images.shape
        return lambda number: self.augmentation.draw(number, (height, width), generator)


class ImageBatches:
    """Shuffled, augmented batches of a task's images.

    Several processes read only their share of a batch, with random numbers and targets of the whole batch. With
    ``cached`` a batch has the cached output of `CurrentTask.frozen_rows` in place of images.
    """

    def __init__(self, now: CurrentTask, batch_size: int, drop_last: bool, cached: bool = False) -> None:
        self.now, self.cached = now, cached
        self.bounds = batch_bounds(len(now.data), batch_size, drop_last)

    def __len__(self) -> int:
        return len(self.bounds)

    def epoch(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        data, runtime = self.now.data, self.now.runtime
        order = torch.randperm(len(data), generator=generator)
        _, height, width = data.images.shape
        for start, stop in self.bounds:
            chosen = order[start:stop]
            changes = self.now.augmentation.draw(len(chosen), (height, width), generator)
            rows = runtime.processes.divide(len(chosen)).rows
            yield self._read(chosen[rows], changes.of(rows)), to_device(data.targets[chosen], runtime.device)

    def _read(self, indices: Tensor, changes: Changes) -> Tensor:
        if self.cached:
            return self.now.frozen_rows(indices, changes.flips(len(indices)))
        images, runtime = self.now.data.images, self.now.runtime
        none = torch.zeros(0, *images.shape, dtype=torch.uint8)
        pixels = changes.read(images, indices, runtime.device) if len(indices) else changes(none.to(runtime.device))
        return pixels.contiguous(memory_format=runtime.memory_format)


@dataclass
class ClassEdit:
    """A change of the classes after ``tasks`` tasks."""

    groups: ClassMap
    network: Network
    runtime: Runtime
    tasks: int
    removed: CurrentTask | None = None
    """Images of the forgotten classes, if given, to remove them exactly."""

    @property
    def name(self) -> str:
        return f"after task {self.tasks}"


FitContext = CurrentTask | ClassEdit
"""When a classifier is fitted to the memory: after a task, or after a class edit."""
