"""Typed results of a run: the runner writes them; tables, figures and replays read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from adagauss.data.dataset import short_name
from adagauss.errors import CheckpointError
from adagauss.runs.metrics import Evaluation, accuracy_matrix, mean
from adagauss.utils.checkpoint import save_json
from adagauss.utils.files import IrregularFileError, read_text

Matrix = tuple[tuple[float, ...], ...]


class Stored(BaseModel):
    """Data stored as JSON that is read back unchanged, or refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def write(self, path: Path) -> None:
        """Store it atomically."""
        save_json(path, self.model_dump())

    @classmethod
    def read(cls, path: Path, remedy: str) -> Self:
        """Read what `write` stored; a damaged file, or one of another version, is refused with the remedy."""
        try:
            return cls.model_validate(json.loads(read_text(path)))
        except FileNotFoundError:
            raise CheckpointError(f"{path} does not exist: {remedy}") from None
        except (OSError, ValueError, RecursionError, IrregularFileError) as error:
            raise CheckpointError(f"{path} is damaged, or of another version ({_reason(error)}): {remedy}") from error


class ProtocolFacts(Stored):
    """The tasks, their order and their scale."""

    dataset: str
    scale: str
    tasks: tuple[int, ...]
    """Number of classes per task."""
    classes: tuple[tuple[str | int | float, ...], ...]
    """Class names per task."""
    test_images: int

    @property
    def title(self) -> str:
        """Dataset and tasks, with a warning if the protocol is reduced for a CPU.

        >>> ProtocolFacts(dataset="digits", tasks=(2, 2), scale="cpu", classes=(), test_images=0).title
        'digits, 2 tasks, CPU scale (compare such numbers with each other only)'
        >>> ProtocolFacts(dataset="tiny", tasks=(50, 10, 10), scale="paper", classes=(), test_images=0).title
        'tiny, 50 classes first, then 2 tasks'
        """
        sizes = self.tasks
        warm = len(sizes) > 1 and sizes[0] >= 2 * sizes[1]
        tasks = (
            f"{sizes[0]} classes first, then {len(sizes) - 1} tasks"
            if warm
            else f"{len(sizes)} task{'s' * (len(sizes) > 1)}"
        )
        small = ", CPU scale (compare such numbers with each other only)" if self.scale == "cpu" else ""
        return f"{short_name(self.dataset)}, {tasks}{small}"


class Details(Stored):
    """The data behind the metrics, for figures; accuracies are fractions."""

    accuracy: tuple[float, ...]
    """After each task over all seen classes; tasks have equal weight."""
    pooled_accuracy: tuple[float, ...]
    """The same; images have equal weight."""
    accuracy_matrix: Matrix
    task_aware_matrix: Matrix
    prediction_share: tuple[float, ...]
    confusion: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation]) -> Details:
        """From the evaluations after each task."""
        matrix = accuracy_matrix(evaluations)
        return cls.model_validate(
            {
                "accuracy": [mean(row) for row in matrix],
                "pooled_accuracy": [evaluation.accuracy() for evaluation in evaluations],
                "accuracy_matrix": matrix,
                "task_aware_matrix": accuracy_matrix(evaluations, task_aware=True),
                "prediction_share": evaluations[-1].prediction_share(),
                "confusion": evaluations[-1].confusion().tolist(),
            }
        )


class TaskFacts(Stored):
    """The time one task took, and what is stored after it."""

    seconds: dict[str, float]
    """Wall time of each stage."""
    images_per_second: float
    bytes_per_class: int
    other_state_bytes: int
    history: tuple[dict[str, float], ...]
    """Mean of each loss in each epoch."""


class Cost(Stored):
    """The time a run took, and what it stores."""

    seconds: dict[str, float]
    """Wall time of each stage, over all tasks."""
    images_per_second: float
    bytes_per_class: int
    other_state_bytes: int

    @property
    def training_seconds(self) -> float:
        """All stages except the evaluation."""
        return sum(value for stage, value in self.seconds.items() if stage != "evaluation")

    @classmethod
    def of(cls, tasks: Sequence[TaskFacts]) -> Cost:
        """Summed times; speed and size after the last task."""
        last = tasks[-1]
        return cls(
            seconds={stage: sum(task.seconds[stage] for task in tasks) for stage in last.seconds},
            images_per_second=last.images_per_second,
            bytes_per_class=last.bytes_per_class,
            other_state_bytes=last.other_state_bytes,
        )


class RunResult(Stored):
    """The numbers of a finished run."""

    version: Literal[2] = 2
    method: str
    preset: str | None
    seed: int
    config: str
    """Digest of the configuration without the seed."""
    protocol: ProtocolFacts
    metrics: dict[str, float]
    """Values keyed by the names in `adagauss.runs.metrics.METRICS`."""
    details: Details
    cost: Cost

    @property
    def title(self) -> str:
        """A one-line description of the run."""
        return f"{self.method}, seed {self.seed}: {self.protocol.title}"


Results = Mapping[str, Sequence[RunResult]]
"""Runs of several seeds by method."""


def protocol_title(results: Results) -> str:
    """The protocol that all runs share."""
    return next(iter(results.values()))[0].protocol.title


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    return str(error)
