"""The log of a run: a CSV file, and the experiment trackers that receive the same numbers."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from adagauss.errors import CheckpointError, unknown_name
from adagauss.experiments.metrics import Evaluation, mean
from adagauss.experiments.run import RunFolder
from adagauss.utils.files import IrregularFileError, read_text, write_atomically
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import import_extra

LOG = "log.csv"
COLUMNS = ("what", "task", "epoch", "step", "name", "value")
"""``what`` is a stage, such as ``training``, or ``accuracy``; ``step`` counts its epochs over the whole run."""
ACCURACY = "accuracy"
PROJECT = "adagauss"

logger = logging.getLogger(__name__)


def tensorboard(folder: Path, settings: dict[str, Any]) -> Logger:
    """Open the folder ``tensorboard`` of a run."""
    opened = TensorBoardLogger(folder, name="", version="tensorboard", flush_secs=1)
    if not Path(opened.log_dir).exists():
        opened.log_hyperparams(settings)
    return opened


class Wandb:
    """A run of the project ``adagauss``, or of WANDB_PROJECT; a resumed run continues it."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        import wandb

        stored = folder / "wandb-id"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=str(folder),
            id=read_text(stored) if stored.exists() else None,
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        write_atomically(stored, str(self._run.id).encode())
        # Each stage has its own steps, which W&B would refuse as its global step: they are the horizontal axis.
        self._run.define_metric("*", step_metric="step")
        self._run.config.update(settings, allow_val_change=True)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._run.log({**metrics, "step": float(step)})

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=int(status != "success"))


TRACKERS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {"tensorboard": tensorboard, "wandb": Wandb}
"""Loggers of Fabric, or classes with the same methods, by the name of the library, which is that of the extra too."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker does not exist or is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        import_extra(name, name, f"--logger {name}")


class RunLog:
    """The log of the run in a folder, open for writing; trackers receive what is added to it."""

    def __init__(
        self,
        folder: RunFolder,
        trackers: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        require_trackers(trackers)
        self._path = folder.path / LOG
        self._names = tuple(dict.fromkeys(trackers))
        self._settings = {
            key: value if isinstance(value, (int, float)) else str(value)[:500]
            for key, value in (settings or {}).items()
        }
        self._reporter = reporter or Reporter()
        self._trackers: dict[str, Any] = {}
        self._steps: dict[str, dict[tuple[int, int | None], int]] = {}
        """The step of each task and epoch, by stage."""
        self._task = 1

    def __enter__(self) -> Self:
        rows: list[Sequence[object]] = [COLUMNS]
        try:
            text = read_text(self._path)
        except (OSError, UnicodeError, IrregularFileError):
            text = ""
        for row in csv.reader(io.StringIO(text)):
            with suppress(ValueError):  # the header, or a line that was cut off when the process was killed
                what, task, epoch, step, _, value = row
                rows.append([*row[:-1], float(value)])
                self._steps.setdefault(what, {})[int(task), int(epoch) if epoch else None] = int(step)
        if text != _lines(rows):
            try:
                write_atomically(self._path, _lines(rows).encode("utf-8"))
            except CheckpointError as error:  # the results do not depend on it
                self._reporter.message(f"{error} The run goes on without a log.")
        for name in self._names:
            with self._dropping(name):
                self._trackers[name] = TRACKERS[name](self._path.parent, self._settings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._dropping(name):
                tracker.finalize("success" if kind is None else "failed")

    @contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        """Stop using a tracker if it raises; the run goes on."""
        try:
            yield
        except Exception as error:  # trackers raise their own errors
            self._trackers.pop(name, None)
            self._reporter.message(
                f"--logger {name} does not work ({type(error).__name__}: {str(error)[:200]}): the run goes on without "
                f"it; everything is in {self._path}"
            )

    def begin(self, index: int) -> None:
        """Log under this task, counted from 0, from now on; joint training calls each of its tasks the first."""
        self._task = index + 1

    def epoch(self, stage: str, epoch: int, losses: Mapping[str, float]) -> None:
        """Log the mean of each loss in an epoch, from 0, of a stage such as ``task 2: training``."""
        place, _, what = stage.partition(": ")
        # Training without a holdout split is a separate stage.
        variant = re.sub(r"^(after )?task \d+", "", place)
        self._add(what + variant, self._task, epoch + 1, losses)

    def evaluation(self, index: int, evaluation: Evaluation) -> None:
        """Log accuracies after a task, from 0: of all seen classes, tasks weighted equally, and of each task."""
        per_task = evaluation.accuracy_per_task()
        values = {"all": mean(per_task), **{f"task {task + 1}": one for task, one in enumerate(per_task)}}
        self._add(ACCURACY, index + 1, None, values)

    def _add(self, what: str, task: int, epoch: int | None, values: Mapping[str, float]) -> None:
        """Add the values of an epoch or a task, unless it is known: it is repeated after the run was killed."""
        steps = self._steps.setdefault(what, {})
        if (task, epoch) in steps:
            return
        step = steps[task, epoch] = len(steps) + 1
        rows = [(what, task, "" if epoch is None else epoch, step, name, value) for name, value in values.items()]
        try:
            with self._path.open("a", encoding="utf-8", newline="") as file:
                file.write(_lines(rows))
        except OSError as error:  # a full disk stops the run when it saves its results
            logger.info("%s could not be written: %s", self._path, error)
        for name, tracker in list(self._trackers.items()):
            with self._dropping(name):
                tracker.log_metrics({f"{what}/{key}": value for key, value in values.items()}, step)


def _lines(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
