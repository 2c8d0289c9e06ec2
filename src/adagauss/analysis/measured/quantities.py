"""What can be measured of a run, and the numbers of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from torch import Tensor

from adagauss.data.images import Label
from adagauss.experiments.config import RunConfig
from adagauss.experiments.metrics import Evaluation, accuracy_matrix, mean
from adagauss.experiments.run import Matrix, TaskFacts

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

OWN, UNMOVED, EFC_UPDATE = "as run", "not adapted", "EFC's update"
FOLLOWED = (OWN, UNMOVED, EFC_UPDATE)
"""Memories on the same networks: as the run left them, as they were stored, and with EFC's update of the means."""
REAL_MEANS, REAL_COVARIANCES, REAL_BOTH = "real means", "real covariances", "real means and covariances"
BANKS = (*FOLLOWED, REAL_MEANS, REAL_COVARIANCES, REAL_BOTH)
"""Memories that the run's own classifier is tried with."""


class Quantity(StrEnum):
    """What a study may need. The first two come from the run folder alone, the others need its images."""

    ANSWERS = "answers"
    """Predictions after each task, losses, times and sizes."""
    MEMORY = "memory"
    """Eigenvalues of the memorised covariances after each task, and how far means were moved."""
    REAL = "real"
    """Real statistics of all classes under each network, and the memory compared with them."""
    FROZEN = "frozen"
    """The network of the first task with exact Gaussians of all classes."""
    SHRINK = "shrink"
    """Accuracy with covariances shrunk by several amounts when they are stored."""

    @property
    def needs_images(self) -> bool:
        return self in (Quantity.REAL, Quantity.FROZEN, Quantity.SHRINK)

    @property
    def costly(self) -> bool:
        """Whether something is trained again for it, so that it is measured only for who asks for it."""
        return self == Quantity.SHRINK


@dataclass(frozen=True)
class Measured:
    """The numbers of one run, as far as it has come."""

    path: Path
    config: RunConfig
    labels: tuple[Label, ...]
    """Classes in the order they were learned."""
    evaluations: Sequence[Evaluation]
    facts: Sequence[TaskFacts]
    environment: Mapping[str, object]
    planned: int
    """Number of tasks of the stream."""
    tables: Mapping[str, Tensor] = field(default_factory=dict)
    missing: Mapping[Quantity, str] = field(default_factory=dict)
    """Why a quantity could not be measured."""

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def finished(self) -> int:
        """Number of finished tasks."""
        return len(self.evaluations)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each finished task."""
        return self.evaluations[-1].sizes

    @property
    def task_of_class(self) -> Numbers:
        """The task that each class was learned in, from 0."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Accuracy over all seen classes after each task; tasks have equal weight."""
        return tuple(mean(row) for row in self.matrix())

    def matrix(self, task_aware: bool = False) -> Matrix:
        """Row t holds the accuracies on tasks 1..t after task t."""
        return tuple(tuple(row) for row in accuracy_matrix(self.evaluations, task_aware))

    def has(self, needs: frozenset[Quantity]) -> bool:
        return not needs & self.missing.keys()

    def table(self, name: str) -> Numbers:
        """Measured numbers by name, such as ``real.distances``; NaN where there are none."""
        found: Numbers = self.tables[name].double().numpy()
        return found

    def by_task(self, values: Numbers) -> Numbers:
        """The mean over the classes of each task; classes are in the first axis."""
        task = self.task_of_class
        return np.stack([values[task == one].mean(0) for one in range(len(self.sizes))])
