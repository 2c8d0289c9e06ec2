"""The files of a run, and the one reader of them."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml
from filelock import FileLock, Timeout
from pydantic import Field
from torch import Tensor

from adagauss.core.config import Config, import_parts
from adagauss.core.learn import Learner
from adagauss.data.dataset import short_name, stored_dataset_name
from adagauss.data.images import Label
from adagauss.errors import AdagaussError, CheckpointError, ConfigError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.metrics import Evaluation, accuracy_matrix, mean, summary
from adagauss.utils.checkpoint import load_tensors, save_json, save_tensors
from adagauss.utils.files import IrregularFileError, YamlError, read_text, read_yaml, write_atomically
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import import_custom

Counts = npt.NDArray[np.int64]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def describe_tasks(dataset: str, sizes: Sequence[int], scale: str = "paper") -> str:
    """Dataset and tasks, with a warning if the protocol is reduced for a CPU.

    >>> describe_tasks("digits", (2, 2), "cpu")
    'digits, 2 tasks, CPU scale (compare such numbers with each other only)'
    >>> describe_tasks("tiny", (50, 10, 10))
    'tiny, 50 classes first, then 2 tasks'
    """
    tasks = f"{len(sizes)} task{'s' * (len(sizes) > 1)}"
    if len(sizes) > 1 and sizes[0] >= 2 * sizes[1]:
        tasks = f"{sizes[0]} classes first, then {len(sizes) - 1} tasks"
    small = ", CPU scale (compare such numbers with each other only)" if scale == "cpu" else ""
    return f"{short_name(dataset)}, {tasks}{small}"


class Cost(Config):
    """The time a run took, and what it stores."""

    seconds: dict[str, float]
    """Wall time of each stage, over all tasks."""
    cpu_seconds: dict[str, float] = Field(default_factory=dict)
    """CPU time of each stage; empty in runs that did not store it."""
    images_per_second: float
    bytes_per_class: int
    other_state_bytes: int

    @property
    def training_seconds(self) -> float:
        """Wall time of all stages except the evaluation."""
        return sum(value for stage, value in self.seconds.items() if stage != "evaluation")


class TaskFacts(Cost):
    """The same for one task, with its losses."""

    history: tuple[dict[str, float], ...]
    """Mean of each loss in each epoch."""


SNAPSHOT_SECONDS = 30.0
METRICS_FILE = "metrics.json"
ENVIRONMENT, DATA = "environment.json", "data.json"
PLUGIN = "plugin "
"""Start of the keys of the environment that describe modules of custom objects."""
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

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other processes; the system releases the lock when this process ends."""
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
            yield
        finally:
            lock.release()

    def require_present(self) -> None:
        """Raise if the folder of a started run was removed: saving would create an incomplete one."""
        if not self.exists():
            raise CheckpointError(
                f"{self.path} was removed or replaced while a run was writing to it, so nothing more can be saved. "
                "Restore the folder and use --resume, or start again with another --out"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The stored configuration as plain data; the modules of custom methods and parts are imported."""
        path = self.path / "config.yaml"
        try:
            data = read_yaml(path)
        except FileNotFoundError:
            raise CheckpointError(f"{self.path} is not a run folder: it has no config.yaml") from None
        except (OSError, YamlError) as error:
            raise CheckpointError(f"{path} is not readable YAML ({error})") from error
        if not isinstance(data, dict):
            raise CheckpointError(f"{path} does not hold a configuration")
        try:
            import_custom([data.get("method_name")])
            if isinstance(method := data.get("method"), dict):
                import_parts(method)
            if isinstance(stream := data.get("stream"), dict):
                stored_dataset_name(str(stream.get("dataset", "")))
        except ConfigError as error:
            noted = [f"{key} ({text})" for key, text in self.environment.items() if key.startswith(PLUGIN)]
            started = f"; the run was started with {', '.join(noted)}" if noted else ""
            raise ConfigError(f"{self.path}: {error}{started}") from error
        return data

    @cached_property
    def config(self) -> RunConfig:
        """The resolved configuration, written by this release or by one with the same settings."""
        settings = self.settings
        try:
            return RunConfig.of(settings)
        except ConfigError as error:
            started = self.environment.get("adagauss", "another version")
            raise CheckpointError(
                f"{self.path} was started with adagauss {started}; this is {version('adagauss')}, which has other "
                f"settings ({error}): continue with that release, or start a new run in another folder"
            ) from None

    @property
    def origins(self) -> dict[str, str]:
        """The layer that each setting of the method comes from, by dotted key; empty if unknown."""
        return self._texts(ORIGINS)

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Versions and machine; empty if they were not stored."""
        return self._texts(ENVIRONMENT)

    @cached_property
    def data(self) -> Mapping[str, str]:
        """Fingerprints of the data; empty if they were not stored."""
        return self._texts(DATA)

    def _texts(self, name: str) -> dict[str, str]:
        return {str(key): str(value) for key, value in self.read_json_or_nothing(name).items()}

    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "config.yaml").exists()

    def write_config(self, config: dict[str, Any]) -> None:
        write_atomically(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False).encode("utf-8"))

    def write_json(self, name: str, data: Any) -> None:
        save_json(self.path / name, data)

    def read_json_or_nothing(self, name: str) -> dict[str, Any]:
        """The content of a JSON file; empty if it is missing or damaged."""
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
        """Number of finished tasks after which the run can be continued: the learner after the last of them exists.

        Frozen methods store only their newest learner: without it, their run starts again.
        """
        count = self.finished_tasks()
        while count and not self.checkpoint(count - 1).exists():
            count -= 1
        return count

    def last_checkpoint(self) -> Path:
        """The newest learner."""
        _ = self.settings  # imports the modules of custom parts, or raises if this is not a run folder
        finished = self.finished_tasks()
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
        try:
            sizes = tuple(about.pop("sizes"))
            evaluation = Evaluation(tensors["true"], tensors["predicted"], tensors["task_aware"], sizes)
            evaluation.check()
            return evaluation, TaskFacts.model_validate(about)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} is not the evaluation of a task ({str(error).splitlines()[0]}): delete the folder "
                f"{path.parent} and continue with --resume, which repeats that task"
            ) from error


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


class Run(RunFolder):
    """A run with at least one finished task, read from its folder when a property is first used.

    Example: ``Run.open("runs/cifar").metrics["a_last"]``.
    """

    def __init__(self, path: Path | str, done: int) -> None:
        super().__init__(path)
        self.done = done
        """Number of finished tasks that the properties cover."""
        self.tables: Mapping[str, Tensor] = {}
        """Measured quantities by name, such as ``real.distances``."""
        self.missing: Mapping[str, str] = {}
        """Reason for each quantity that could not be measured."""

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open a run folder.

        Raises:
            CheckpointError: if the folder holds no run, or no finished task.
        """
        folder = RunFolder(path)
        folder.last_checkpoint()
        return cls(path, folder.finished_tasks())

    def with_tables(self, tables: Mapping[str, Tensor], missing: Mapping[str, str] | None = None) -> Run:
        """The same run with measured quantities; what was read stays in memory."""
        run = copy.copy(self)
        run.tables, run.missing = tables, missing or {}
        return run

    @cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Predictions after each finished task."""
        evaluations = tuple(evaluation for evaluation, _ in self._tasks)
        last = evaluations[-1].sizes
        for index, evaluation in enumerate(evaluations):
            if evaluation.sizes != last[: index + 1]:
                raise CheckpointError(
                    f"{self.path}: the evaluations of its tasks are from different runs (task {index + 1} has "
                    f"{list(evaluation.sizes)} classes, the last one {list(last)}). Run it again in another folder."
                )
        return evaluations

    @cached_property
    def facts(self) -> tuple[TaskFacts, ...]:
        """Times, losses and sizes of each finished task."""
        return tuple(facts for _, facts in self._tasks)

    @cached_property
    def _tasks(self) -> list[tuple[Evaluation, TaskFacts]]:
        return [self.evaluation(index) for index in range(self.done)]

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """Classes in the order of learning: from the metrics of a finished run, else from its newest learner."""
        count = sum(self.sizes)
        with suppress(KeyError, TypeError):  # its file may be missing or damaged
            stored = self.read_json_or_nothing(METRICS_FILE)["protocol"]["classes"]
            labels = tuple(itertools.chain(*stored))
            if len(labels) == count and all(isinstance(label, str | int | float) for label in labels):
                return labels
        with suppress(AdagaussError):
            classes = Learner.load(self.checkpoint(self.done - 1)).classes
            if len(classes) == count:
                return tuple(classes)
        return tuple(f"class {number + 1}" for number in range(count))

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.config.method_name

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.config.seed

    @property
    def digest(self) -> str:
        """Digest of the configuration without the seed."""
        return self.config.digest()

    @property
    def planned_tasks(self) -> int:
        """Number of tasks of the stream."""
        stream = self.config.stream
        return len(stream.sizes) if stream.sizes else stream.tasks

    @property
    def finished(self) -> bool:
        """Whether every task of the stream is finished."""
        return self.done >= self.planned_tasks

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each finished task."""
        return self.evaluations[-1].sizes

    @property
    def task_of_class(self) -> Counts:
        """The task of each class, from 0."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Every metric by name, over the finished tasks."""
        return summary(self.evaluations)

    @cached_property
    def matrix(self) -> tuple[tuple[float, ...], ...]:
        """Row t: accuracy on tasks 1..t after task t."""
        return tuple(map(tuple, accuracy_matrix(self.evaluations)))

    @cached_property
    def curve(self) -> tuple[float, ...]:
        """Accuracy on all seen classes after each task; tasks have equal weight."""
        return tuple(mean(row) for row in self.matrix)

    @cached_property
    def confusion(self) -> Counts:
        """Counts after the last finished task; rows are true classes, in the order of ``labels``."""
        counts: Counts = self.evaluations[-1].confusion().numpy()
        return counts

    @cached_property
    def cost(self) -> Cost:
        """Times over the finished tasks; speed and size after the last one."""
        last = self.facts[-1]
        times = {
            name: {
                stage: sum(getattr(task, name).get(stage, 0.0) for task in self.facts) for stage in getattr(last, name)
            }
            for name in ("seconds", "cpu_seconds")
        }
        return Cost(**{**last.model_dump(exclude={"history"}), **times})

    @property
    def protocol(self) -> str:
        """Dataset, planned tasks and scale in a line."""
        return describe_tasks(self.config.stream.dataset, self.planned_sizes, self.config.scale)

    @property
    def planned_sizes(self) -> tuple[int, ...]:
        """Number of classes of each task, as far as it is known: an unfinished task has as many as the last one."""
        return (*self.sizes, *self.sizes[-1:] * (self.planned_tasks - self.done))

    @property
    def task_classes(self) -> tuple[tuple[Label, ...], ...]:
        """The classes of each finished task."""
        ends = itertools.accumulate(self.sizes)
        return tuple(self.labels[end - size : end] for end, size in zip(ends, self.sizes, strict=True))

    @property
    def title(self) -> str:
        """A one-line description of the run."""
        return f"{self.method}, seed {self.seed}: {self.protocol}"

    @property
    def code(self) -> str:
        """Version and digest of the code that started the run."""
        release, source = self.environment.get("adagauss"), self.environment.get("source")
        return f"{release}, source {source}" if release and source else "of unknown version"

    def table(self, name: str) -> Numbers:
        """Measured numbers by name; NaN where there are none."""
        found: Numbers = self.tables[name].double().numpy()
        return found

    def by_task(self, values: Numbers) -> Numbers:
        """The mean over the classes of each task; classes are in the first axis."""
        task = self.task_of_class
        return np.stack([values[task == one].mean(0) for one in range(len(self.sizes))])

    def stored_metrics(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        last = self.evaluations[-1]
        return {
            "version": 2,
            "method": self.method,
            "preset": self.config.preset,
            "seed": self.seed,
            "config": self.digest,
            "protocol": {
                "dataset": self.config.stream.dataset,
                "scale": self.config.scale,
                "tasks": self.sizes,
                "classes": self.task_classes,
                "test_images": len(last.true),
            },
            "metrics": {name: None if math.isnan(value) else value for name, value in self.metrics.items()},
            "details": {
                "accuracy": self.curve,
                "pooled_accuracy": [evaluation.accuracy() for evaluation in self.evaluations],
                "accuracy_matrix": self.matrix,
                "task_aware_matrix": accuracy_matrix(self.evaluations, task_aware=True),
                "prediction_share": last.prediction_share(),
                "confusion": last.confusion().tolist(),
            },
            "cost": self.cost.model_dump(),
        }


Groups = Mapping[str, Sequence[Run]]
"""Runs of one configuration with several seeds, by a label that distinguishes configurations."""


def all_runs(groups: Groups) -> list[Run]:
    """The runs of all groups."""
    return [run for members in groups.values() for run in members]


def open_runs(
    paths: Iterable[Path | str], *, strict: bool = False, reporter: Reporter | None = None
) -> tuple[list[Run], dict[Path, str]]:
    """Read runs, each once; a folder of run folders, such as ``compare`` writes, stands for those.

    Args:
        paths: run folders, or folders that contain some.
        strict: whether a folder that cannot be read is an error, instead of a reason in the second result.
        reporter: shows progress.
    """
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        inner = [] if RunFolder(path).exists() else sorted(one.parent for one in path.glob("*/config.yaml"))
        for one in inner or [path]:
            folders.setdefault(one.resolve(), one)
    runs: list[Run] = []
    skipped: dict[Path, str] = {}
    with (reporter or Reporter()).progress("reading runs", len(folders)) as advance:
        for path in folders.values():
            try:
                run = Run.open(path)
                run.config, run.evaluations  # noqa: B018  (read now, so that damage is found)
                runs.append(run)
            except AdagaussError as error:
                if strict:
                    raise
                skipped[path] = str(error)
            advance(path.name)
    return runs, skipped
