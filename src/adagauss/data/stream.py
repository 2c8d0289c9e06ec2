"""The stream of tasks: class orders, and how classes or images are divided into tasks.

A stream of any kind is one number per image, its task, with -1 for an image that is not used. `class_incremental` and
`domain_incremental` make such numbers, `long_tailed`, `few_shot`, `repeated` and `blurry` change them, and `by_task`
yields the tasks. Their tasks can have more images of known classes; `Learner.learn` raises an error with the reason if
a method cannot learn these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)
from torch import Tensor

from adagauss.core.config import Config
from adagauss.data.dataset import Dataset, stored_dataset_name
from adagauss.data.images import Label, LabelledImages, normal_label
from adagauss.errors import ConfigError, DataError, unknown_name


class StreamConfig(Config):
    """How a dataset is divided into tasks."""

    dataset: str = "digits"
    tasks: PositiveInt = 5
    first: PositiveInt | None = None
    """Number of classes in the first task; the rest is divided equally over the others. None: all tasks are equal."""
    sizes: tuple[PositiveInt, ...] | None = None
    """Number of classes of each task, if they are irregular; ``tasks`` and ``first`` are then ignored."""
    classes: PositiveInt | None = None
    """Use only this many classes, the first ones in the class order."""
    class_order: str | NonNegativeInt | tuple[NonNegativeInt | str, ...] | None = None
    """A name, a seed or a list of classes (see `class_order`); None takes the dataset's default."""
    class_order_seed: int = 0
    """The seed of the order ``"seeded"``."""
    image_size: PositiveInt | None = None
    """Side that image files are resized to; None takes the dataset's default."""
    skip_bad_images: bool = False
    """Skip image files that cannot be decoded."""
    imbalance: Annotated[float, Field(ge=1)] | None = None
    """Ratio of the training images of the first and the last class; see `long_tailed`. None: all images."""
    shots: PositiveInt | None = None
    """Training images per class after the first task; see `few_shot`. None: all images."""

    @model_serializer(mode="wrap")
    def _without_unused(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Configurations without them have the same digest as those of earlier releases.
        unused = {name for name in ("imbalance", "shots") if getattr(self, name) is None}
        return {name: value for name, value in fields(self).items() if name not in unused}

    @field_validator("dataset")
    @classmethod
    def _stored(cls, name: str) -> str:
        # A run is stored under this name, and may be resumed from another directory.
        return stored_dataset_name(name)


@dataclass(frozen=True)
class Task:
    """The classes of one task and their images."""

    index: int
    classes: tuple[Label, ...]
    train: LabelledImages
    test: LabelledImages


class TaskStream:
    """A dataset's classes, ordered and divided into tasks.

    >>> from adagauss.data.dataset import load_dataset
    >>> stream = TaskStream(load_dataset("digits"), StreamConfig(tasks=5))
    >>> [task.classes for task in stream]
    [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    """

    def __init__(
        self, dataset: Dataset, config: StreamConfig, default_order: str = "natural", run_seed: int = 0
    ) -> None:
        named = config.class_order if config.class_order is not None else default_order
        seed = run_seed if named == "per-run" else config.class_order_seed
        order = class_order(named, dataset.classes, seed)
        sizes = divided_sizes(config, len(order), dataset.name)
        labels = iter([dataset.classes[position] for position in order])
        self.task_classes: list[tuple[Label, ...]] = [tuple(islice(labels, size)) for size in sizes]
        self.dataset = replace(dataset, train=self._sampled(dataset.train, config, sizes))

    def _sampled(self, train: LabelledImages, config: StreamConfig, sizes: Sequence[int]) -> LabelledImages:
        """The training images that the configuration keeps."""
        if config.imbalance is None and config.shots is None:
            return train
        train = train.of_classes(self.seen(len(sizes) - 1))
        tasks = class_incremental(train.targets, sizes)
        if config.imbalance is not None:
            tasks = long_tailed(tasks, train.targets, config.imbalance, config.class_order_seed)
        if config.shots is not None:
            tasks = few_shot(tasks, train.targets, config.shots, config.class_order_seed)
        return train.rows((tasks >= 0).nonzero().flatten())

    def __len__(self) -> int:
        return len(self.task_classes)

    def __getitem__(self, index: int) -> Task:
        classes = self.task_classes[index]
        return Task(index, classes, self.dataset.train.of_classes(classes), self.dataset.test.of_classes(classes))

    def seen(self, index: int) -> list[Label]:
        """Return all classes of the tasks up to and including ``index``."""
        return [label for classes in self.task_classes[: index + 1] for label in classes]

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))


def divided_sizes(config: StreamConfig, classes: int, dataset: str) -> list[int]:
    """Return the number of classes of each task, for a dataset with this many classes."""
    if config.classes is not None:
        if config.classes > classes:
            raise ConfigError(f"{config.classes} classes were requested, but {dataset} has {classes}")
        classes = config.classes
    sizes = list(config.sizes) if config.sizes else task_sizes(classes, config.tasks, config.first)
    if sum(sizes) != classes:
        raise ConfigError(f"the task sizes add up to {sum(sizes)}, but there are {classes} classes")
    return sizes


def task_sizes(classes: int, tasks: int, first: int | None = None) -> list[int]:
    """Divide classes over tasks: ``first`` (or an equal share), then equal shares; early tasks get the remainder.

    >>> task_sizes(10, 5), task_sizes(100, 6, first=50), task_sizes(10, 3)
    ([2, 2, 2, 2, 2], [50, 10, 10, 10, 10, 10], [4, 3, 3])
    """
    if tasks > classes:
        raise ConfigError(f"{tasks} tasks were requested, but there are only {classes} classes: use at most {classes}")
    if first is not None and first > classes - (tasks - 1):
        raise ConfigError(f"a first task of {first} of {classes} classes leaves too few for {tasks - 1} more tasks")
    if first is not None and tasks == 1 and first != classes:
        raise ConfigError(f"a single task must have all {classes} classes, not {first}")
    begin = [] if first is None else [first]
    share, rest = divmod(classes - sum(begin), max(1, tasks - len(begin)))
    return [*begin, *(share + (index < rest) for index in range(tasks - len(begin)))]


ICARL_SEED = 1993


def class_order(order: str | int | Sequence[int | str], classes: Sequence[Label], seed: int = 0) -> list[int]:
    """Return the positions of classes in the order in which they are learned.

    - ``"natural"``: as the dataset numbers them;
    - ``"icarl"``: NumPy's legacy permutation with seed 1993, the usual order for CIFAR-100;
    - ``"seeded"`` and ``"per-run"``: the same permutation with ``seed``; a number is short for it. A stream takes the
      seed from its configuration for ``seeded``, and from the run for ``per-run``;
    - a list of classes, by name, or by position if no class has that name.

    >>> class_order("icarl", range(100))[:5]
    [68, 56, 78, 8, 23]
    >>> class_order(["wren", "owl", "0"], ["robin", "owl", "wren"])
    [2, 1, 0]
    """
    count = len(classes)
    seeds = {"icarl": ICARL_SEED, "seeded": seed, "per-run": seed}
    if order == "natural":
        return list(range(count))
    if isinstance(order, str):
        if order not in seeds and not order.isdecimal():
            raise unknown_name("class order", order, ("natural", *seeds))
        order = seeds[order] if order in seeds else int(order)
    if isinstance(order, int):
        if not 0 <= order < 2**32:
            raise ConfigError(f"the seed of a class order must lie in 0..{2**32 - 1}; got {order}")
        return [int(position) for position in np.random.RandomState(order).permutation(count)]
    names = {normal_label(str(label)): place for place, label in enumerate(classes)}
    chosen = []
    for word in order:
        name = normal_label(word)
        if not isinstance(word, int) and name not in names and not word.isdecimal():
            raise unknown_name("class", word, map(str, names))
        chosen.append(word if isinstance(word, int) else names.get(name, int(word) if word.isdecimal() else -1))
    if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(count)):
        raise ConfigError(
            f"a class order must list classes, or positions 0..{count - 1}, each at most once; got {list(order)}"
        )
    return chosen


# ------------------------------------------------------------------------------------ streams by the task of each image


def by_task(data: LabelledImages, tasks: Tensor) -> Iterator[LabelledImages]:
    """Yield the images of each task, with the classes that it has.

    >>> from adagauss.data.dataset import load_dataset
    >>> digits = load_dataset("digits").train
    >>> tasks = blurry(class_incremental(digits.targets, [5, 5]), share=0.1)
    >>> [len(task.classes) for task in by_task(digits, tasks)]
    [10, 10]
    """
    if tasks.shape != (len(data),):
        raise DataError(f"{len(data)} images but tasks of shape {tuple(tasks.shape)}: give one task number per image")
    for task in range(int(tasks.max()) + 1):
        rows = (tasks == task).nonzero().flatten()
        if not len(rows):
            raise DataError(f"task {task} has no images: number the tasks 0, 1, 2, ...")
        part = data.rows(rows)
        yield part.of_classes([part.classes[target] for target in part.counts().nonzero().flatten().tolist()])


def class_incremental(targets: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the task of each image if every class comes in one task; ``sizes`` are the numbers of classes per task.

    >>> class_incremental(torch.tensor([0, 1, 2, 3, 4]), [2, 3])
    tensor([0, 0, 1, 1, 1])
    """
    if int(targets.max()) >= sum(sizes):
        raise ConfigError(f"the task sizes add up to {sum(sizes)}, but there are {int(targets.max()) + 1} classes")
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))[targets]


def domain_incremental(domains: Sequence[Any] | Tensor) -> Tensor:
    """Return the task of each image if every domain is a task, in order of first appearance.

    >>> domain_incremental(["photo", "photo", "sketch"])
    tensor([0, 0, 1])
    """
    listed = domains.tolist() if isinstance(domains, Tensor) else domains
    numbers = {domain: number for number, domain in enumerate(dict.fromkeys(listed))}
    return torch.tensor([numbers[domain] for domain in listed])


def long_tailed(tasks: Tensor, targets: Tensor, imbalance: float = 100.0, seed: int = 0) -> Tensor:
    """Keep n_c = n_max · imbalance^(−c/(C−1)) images of class c, rounded: at most those it has and one at least."""
    counts = torch.bincount(targets)
    shares = imbalance ** -(torch.arange(len(counts), dtype=torch.float64) / max(1, len(counts) - 1))
    return _first_of_class(tasks, targets, (counts.max() * shares).round().clamp_min(1), seed)


def few_shot(tasks: Tensor, targets: Tensor, shots: int = 5, seed: int = 0) -> Tensor:
    """Keep ``shots`` images of each class in every task after the first one."""
    own = tasks.clamp_min(0) * (int(targets.max()) + 1) + targets  # a number for each class in each task
    most = torch.full((int(own.max()) + 1,), shots)
    kept = _first_of_class(torch.where(tasks > 0, tasks, -1), own, most, seed)
    return torch.where(tasks > 0, kept, tasks)


def repeated(tasks: Tensor, share: float = 0.3, seed: int = 0) -> Tensor:
    """Move a share of the images of each task to later tasks at random, so that their classes come again."""
    generator, last = torch.Generator().manual_seed(seed), int(tasks.max())
    later = tasks + 1 + (torch.rand(len(tasks), generator=generator) * (last - tasks)).long()
    moved = (torch.rand(len(tasks), generator=generator) < share) & (tasks >= 0) & (tasks < last)
    return torch.where(moved, later, tasks)


def blurry(tasks: Tensor, share: float = 0.1, seed: int = 0) -> Tensor:
    """Move a share of the images of each task to any other task at random, earlier or later."""
    generator, count = torch.Generator().manual_seed(seed), int(tasks.max()) + 1
    other = (tasks + 1 + (torch.rand(len(tasks), generator=generator) * (count - 1)).long()) % count
    moved = (torch.rand(len(tasks), generator=generator) < share) & (tasks >= 0)
    return torch.where(moved, other, tasks)


def _first_of_class(tasks: Tensor, targets: Tensor, most: Tensor, seed: int) -> Tensor:
    """Keep at most ``most[c]`` random images of class c in all its tasks; others have the task -1."""
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    order = order[tasks[order] >= 0]
    order = order[targets[order].argsort(stable=True)]
    starts = torch.searchsorted(targets[order], targets[order])
    kept = order[torch.arange(len(order)) - starts < most[targets[order]]]
    result = torch.full_like(tasks, -1)
    result[kept] = tasks[kept]
    return result
