"""The files of a run, and the one reader of them."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

import torch
import yaml
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from adagauss.core.gaussians import ClassGaussians
from adagauss.data.dataset import short_name
from adagauss.errors import AdagaussError, CheckpointError, ConfigError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.metrics import Evaluation, accuracy_matrix, mean
from adagauss.utils.checkpoint import load_tensors, save_json, save_tensors
from adagauss.utils.files import IrregularFileError, YamlError, read_text, read_yaml, write_atomically
from adagauss.utils.progress import Advance, Reporter

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
    """Values keyed by the names in `adagauss.experiments.metrics.METRICS`."""
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


SNAPSHOT_SECONDS = 30.0
METRICS_FILE = "metrics.json"
ORIGINS = "origins.json"
"""File next to the configuration: the layer that each setting of the method comes from."""

logger = logging.getLogger(__name__)


class InUseError(CheckpointError):
    """Another process is writing to the folder."""


class RunFolder:
    """The files of one run.

    A task is finished when its evaluation exists, which is written last: if a run is killed at any moment, the finished
    tasks are complete and the unfinished one is repeated (from its last snapshot).
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._locked: tuple[int, int] | None = None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing here; the system releases the lock whenever this process ends."""
        lock = FileLock(self.path / "lock", blocking=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise InUseError(
                f"{self.path} is in use by another process: wait for it, or choose another folder"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be a run folder ({error.strerror}): choose another") from error
        try:
            self._locked = self._lock_file()
            yield
        finally:
            self._locked = None
            lock.release()

    def require_present(self) -> None:
        """Raise if this folder, which is locked, was removed or replaced since: writing would begin a new one."""
        # The lock file is still open, so no other file can have its number.
        if self._locked is not None and self._lock_file() != self._locked:
            raise CheckpointError(
                f"{self.path} was removed or replaced while a run was writing to it, so the run stops: nothing more "
                "can be saved there. Bring the folder back and use --resume, or start again with another --out"
            )

    def _lock_file(self) -> tuple[int, int] | None:
        try:
            state = (self.path / "lock").stat()
        except OSError:
            return None
        return state.st_dev, state.st_ino

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run."""
        path = self.path / "config.yaml"
        try:
            data = read_yaml(path)
        except FileNotFoundError:
            raise CheckpointError(f"{self.path} is not a run folder: it has no config.yaml") from None
        except (OSError, YamlError) as error:
            raise CheckpointError(f"{path} is not readable YAML ({error})") from error
        if not isinstance(data, dict):
            raise CheckpointError(f"{path} does not hold a configuration")
        return data

    @property
    def origins(self) -> dict[str, str]:
        """The layer that each setting of the method comes from, by dotted key; empty if unknown."""
        return {key: str(layer) for key, layer in self.read_json_or_nothing(ORIGINS).items()}

    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "config.yaml").exists()

    def untouched(self) -> bool:
        """Whether the run here has not saved anything yet."""
        return not (self.path / "tasks").exists() and not (self.path / "snapshots").exists()

    def write_config(self, config: dict[str, Any]) -> None:
        self.require_present()
        write_atomically(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False).encode("utf-8"))

    def write_json(self, name: str, data: Any) -> None:
        self.require_present()
        save_json(self.path / name, data)

    def read_json_or_nothing(self, name: str) -> dict[str, Any]:
        """The content of a JSON file beside the results; nothing if it is missing or damaged."""
        try:
            content = json.loads(read_text(self.path / name))
        except (OSError, ValueError, RecursionError, IrregularFileError) as error:
            logger.info("%s cannot be read: %s", self.path / name, error)
            return {}
        return content if isinstance(content, dict) else {}

    def task(self, index: int) -> Path:
        """The folder of a task, counted from 0."""
        return self.path / "tasks" / f"{index + 1:02d}"

    def checkpoint(self, index: int) -> Path:
        """The learner after a task."""
        return self.task(index) / "learner.safetensors"

    def finished_tasks(self) -> int:
        """Number of finished tasks."""
        count = 0
        while (self.task(count) / "evaluation.safetensors").exists():
            count += 1
        return count

    def learned_tasks(self) -> int:
        """Number of finished tasks after which the run can go on: the learner after the last of them is there."""
        count = self.finished_tasks()
        while count and not self.checkpoint(count - 1).exists():
            count -= 1
        return count

    def last_checkpoint(self) -> Path:
        """The newest learner."""
        finished = self.finished_tasks()
        if not self.exists():
            raise CheckpointError(f"{self.path} is not a run folder: it has no config.yaml")
        if not finished:
            raise CheckpointError(f"{self.path} has no finished task yet: continue with --resume")
        return self.checkpoint(finished - 1)

    def write_evaluation(self, index: int, evaluation: Evaluation, facts: TaskFacts) -> None:
        tensors = {"true": evaluation.true, "predicted": evaluation.predicted, "task_aware": evaluation.task_aware}
        about = {**facts.model_dump(), "sizes": evaluation.sizes}
        self.require_present()
        save_tensors(self.task(index) / "evaluation.safetensors", "evaluation", tensors, about)

    def evaluation(self, index: int) -> tuple[Evaluation, TaskFacts]:
        """Predictions after a task, and facts about it (seconds of each stage, losses)."""
        path = self.task(index) / "evaluation.safetensors"
        tensors, about = load_tensors(path, "evaluation")
        with _consistent(path):
            sizes = tuple(about.pop("sizes"))
            evaluation = Evaluation(tensors["true"], tensors["predicted"], tensors["task_aware"], sizes)
            evaluation.check()
            return evaluation, TaskFacts.model_validate(about)

    def write_result(self, result: RunResult) -> None:
        self.require_present()
        result.write(self.path / METRICS_FILE)

    def result(self) -> RunResult:
        """The numbers of the finished run."""
        remedy = f"`adagauss run --out {self.path} --resume` finishes the run and writes it again"
        return RunResult.read(self.path / METRICS_FILE, remedy)

    def write_real(self, index: int, real: ClassGaussians, sample: Tensor, targets: Tensor) -> None:
        """Store the real statistics of all seen classes after a task, and features for a figure, which may be none."""
        tensors = {**real.state_dict(), "sample": sample, "targets": targets}
        save_tensors(self.task(index) / "real.safetensors", "real", tensors, {"labels": real.labels})

    def real(self, index: int) -> tuple[ClassGaussians, Tensor, Tensor]:
        """What `write_real` stored."""
        path = self.task(index) / "real.safetensors"
        tensors, facts = load_tensors(path, "real")
        with _consistent(path):
            sample, targets = tensors.pop("sample"), tensors.pop("targets")
            real = ClassGaussians.from_state(tensors, facts["labels"], "full")
            real.check()
            return real, sample, targets


@contextmanager
def _consistent(path: Path) -> Iterator[None]:
    """Turn what goes wrong with content that does not fit together into a sentence."""
    try:
        yield
    except (AdagaussError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not hold what it should ({str(error).splitlines()[0]}): delete the folder {path.parent} and "
            "continue with --resume, which repeats that task"
        ) from error


class Watching(Reporter):
    """Reports to another reporter, and stops the run at the next step of anything if its folder is gone."""

    def __init__(self, reporter: Reporter, folder: RunFolder) -> None:
        self._reporter = reporter
        self._folder = folder

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "") -> Iterator[Advance]:
        with self._reporter.progress(title, total, unit) as advance:

            def watched(note: str = "", step: float = 1.0) -> None:
                self._folder.require_present()
                advance(note, step)

            yield watched

    def message(self, text: str) -> None:
        self._reporter.message(text)


class FileSnapshots:
    """Snapshots of the current task: one file per stage, updated every half minute, removed when the task is done."""

    def __init__(self, path: Path, seconds: float = SNAPSHOT_SECONDS) -> None:
        self.path = path
        self.seconds = seconds
        self._saved = time.monotonic()

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        self._saved = time.monotonic()
        path = self._file(stage)
        if not path.exists():
            return None
        try:
            return load_tensors(path, "snapshot")
        except CheckpointError as error:  # a snapshot only saves time: without it the stage restarts
            logger.warning("%s; the stage starts again", error)
            return None

    def offer(self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        if time.monotonic() - self._saved < self.seconds:
            return
        try:
            save_tensors(self._file(stage), "snapshot", tensors, facts)
        except CheckpointError as error:
            logger.warning("no snapshot was saved: %s", error)
        self._saved = time.monotonic()

    def clear(self) -> None:
        """Remove the snapshots after their task is finished."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _file(self, stage: str) -> Path:
        return self.path / f"{stage.replace(':', '').replace(' ', '-')}.safetensors"


def real_statistics(features: Tensor, targets: Tensor, labels: list[Any]) -> ClassGaussians:
    """Gaussians of labelled features, classes in the order of ``labels``."""
    bank = ClassGaussians.from_features(features, [labels[target] for target in targets.tolist()])
    return bank.select([label for label in labels if label in bank]) if len(bank) else bank


def sample_rows(targets: Tensor, per_class: int) -> Tensor:
    """Positions of the first ``per_class`` rows of every class."""
    return torch.cat(
        [torch.nonzero(targets == target).flatten()[:per_class] for target in sorted(set(targets.tolist()))]
    )


def stored_config(folder: RunFolder) -> RunConfig:
    """The configuration of a started run, written by this release or by one with the same settings."""
    try:
        return RunConfig.of(folder.config)
    except ConfigError as error:
        begun = folder.read_json_or_nothing("environment.json").get("adagauss", "another version")
        raise CheckpointError(
            f"{folder.path} was started with adagauss {begun}; this is {version('adagauss')}, which has other settings "
            f"({error}): continue with that release, or start a new run in another folder"
        ) from None
