"""The first tasks of a stream with their training images alone: some of them judge instead of the test images.

Settings that are chosen by test images, or by tasks that have not come yet, know what a learner cannot know. Nothing of
either is in a rehearsal, so whoever is given one cannot use it by mistake.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adagauss.data.dataset import Dataset
from adagauss.data.images import LabelledImages, Subset
from adagauss.data.stream import StreamConfig, TaskStream
from adagauss.errors import ConfigError, DataError
from adagauss.runs.configuration import RunConfig
from adagauss.runs.runner import make_stream
from adagauss.utils.runtime import derive_seed


@dataclass(frozen=True)
class Rehearsal:
    """How many tasks are rehearsed, and which share of their training images judges."""

    stream: StreamConfig
    """The whole stream."""
    tasks: int = 2
    share: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"--held-out is the share of training images that judge, within 0..1; got {self.share}")

    def of(self, config: RunConfig, dataset: Dataset) -> tuple[RunConfig, Dataset]:
        """The configuration of a run of the first tasks, and their data."""
        stream = make_stream(config.model_copy(update={"stream": self.stream}), dataset)
        if self.tasks > len(stream):
            raise ConfigError(f"--first-tasks {self.tasks}: the stream has {len(stream)} tasks; choose fewer")
        sizes = tuple(len(classes) for classes in stream.task_classes[: self.tasks])
        rehearsed = self.stream.model_copy(update={"sizes": sizes, "classes": None, "class_order": "natural"})
        return config.model_copy(update={"stream": rehearsed}), self.data(stream)

    def data(self, stream: TaskStream) -> Dataset:
        """Training images of the first tasks in the order of their classes, divided by class into two."""
        dataset = stream.dataset
        images = dataset.train.of_classes(stream.seen(self.tasks - 1))
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "held out"))
        judging = torch.zeros(len(images), dtype=torch.bool)
        for target, label in enumerate(images.classes):
            rows = torch.nonzero(images.targets == target).flatten()
            if len(rows) < 2:
                raise DataError(f"class {label} has {len(rows)} training image(s): one to learn and one to judge it by")
            count = min(len(rows) - 1, max(1, round(self.share * len(rows))))
            judging[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
        return Dataset(
            dataset.name, _chosen(images, ~judging), _chosen(images, judging), mean=dataset.mean, std=dataset.std
        )


def _chosen(images: LabelledImages, mask: torch.Tensor) -> LabelledImages:
    rows = torch.nonzero(mask).flatten()
    return LabelledImages(Subset(images.images, rows), images.targets[rows], images.classes)
