"""The log of a run: a CSV file, and the experiment trackers that receive the same numbers."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from adagauss.errors import AdagaussError, CheckpointError, unknown_name
from adagauss.experiments.metrics import Evaluation, mean
from adagauss.experiments.run import RunFolder
from adagauss.utils.files import IrregularFileError, read_text, write_atomically
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import import_extra

LOG, SENT = "log.csv", "log.json"
COLUMNS = ("what", "task", "epoch", "step", "name", "value")
ACCURACY = "accuracy"
PROJECT = "adagauss"

logger = logging.getLogger(__name__)


def tensorboard(folder: Path, known: str | None, settings: dict[str, Any]) -> Logger:
    """Open the folder ``tensorboard`` of a run."""
    opened = TensorBoardLogger(folder, name="", version="tensorboard", flush_secs=1)
    if known is None:
        opened.log_hyperparams(settings)
    return opened


class Wandb:
    """A run of the project ``adagauss``, or of WANDB_PROJECT."""

    def __init__(self, folder: Path, known: str | None, settings: dict[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=str(folder),
            id=known,
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        self.version = str(self._run.id)
        # Each stage has its own steps, which W&B would refuse as its global step: they are the horizontal axis.
        self._run.define_metric("*", step_metric="step")
        if known is None:
            self._run.config.update(settings, allow_val_change=True)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._run.log({**metrics, "step": float(step)})

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=int(status != "success"))


TRACKERS: dict[str, Callable[[Path, str | None, dict[str, Any]], Any]] = {"tensorboard": tensorboard, "wandb": Wandb}
"""Loggers of Fabric, or classes with the same methods, by the name of the library, which is that of the extra too.

They take the run folder, the version of a tracker that a resumed run continues, and the settings.
"""


def require_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker does not exist or is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        import_extra(name, name, f"--logger {name}")


class Entry(NamedTuple):
    """Numbers that were measured at one moment."""

    what: str
    """A stage of a task, such as ``training`` or ``adapter``, or ``accuracy``."""
    task: int
    """Counted from 1."""
    epoch: int | None
    """Within the stage, counted from 1."""
    step: int
    """Over the whole run: epochs of this stage, or tasks."""
    values: Mapping[str, float]

    @property
    def key(self) -> tuple[str, int, int | None]:
        return self.what, self.task, self.epoch

    def lines(self) -> str:
        """The lines of the file."""
        text = io.StringIO()
        epoch = "" if self.epoch is None else self.epoch
        rows = [(self.what, self.task, epoch, self.step, name, value) for name, value in self.values.items()]
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()


class RunLog:
    """The log of the run in a folder, open for writing."""

    def __init__(
        self,
        folder: RunFolder,
        trackers: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        require_trackers(trackers)
        self._folder = folder
        self._names = list(dict.fromkeys(trackers))
        self._settings = {
            key: value if isinstance(value, (int, float)) else str(value)[:500]
            for key, value in (settings or {}).items()
        }
        self._reporter = reporter or Reporter()
        self._open: dict[str, Any] = {}
        self._sent: dict[str, dict[str, Any]] = {}
        """The id of each tracker, and how many entries it has."""
        self.entries: list[Entry] = []
        self._known: set[tuple[str, int, int | None]] = set()
        self._steps: Counter[str] = Counter()
        self._task = 1
        self._writes = True

    def __enter__(self) -> Self:
        text, self.entries = read_log(self._folder.path / LOG)
        complete = ",".join(COLUMNS) + "\n" + "".join(entry.lines() for entry in self.entries)
        if text != complete:  # new, or cut off when the process was killed
            try:
                write_atomically(self._folder.path / LOG, complete.encode("utf-8"))
            except CheckpointError as error:  # the results do not depend on it
                self._reporter.message(f"{error} The run goes on without a log.")
                self._writes = False
        self._known = {entry.key for entry in self.entries}
        self._steps = Counter(entry.what for entry in self.entries)
        stored = self._folder.read_json_or_nothing(SENT) if (self._folder.path / SENT).exists() else {}
        self._sent = {
            name: one for name, one in stored.items() if isinstance(one, dict) and isinstance(one.get("sent"), int)
        }
        self._send()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._names):
            try:
                self._open[name].finalize("success" if kind is None else "failed")
            except Exception as reason:  # trackers raise their own errors
                self._give_up(name, reason)

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
        if (what, task, epoch) in self._known:  # repeated since a run was killed
            return
        self._steps[what] += 1
        entry = Entry(what, task, epoch, self._steps[what], dict(values))
        self._known.add(entry.key)
        self.entries.append(entry)
        try:
            if self._writes:
                with (self._folder.path / LOG).open("a", encoding="utf-8", newline="") as file:
                    file.write(entry.lines())
        except OSError as error:  # a full disk stops the run when it saves its results
            logger.warning("%s could not be written: %s", self._folder.path / LOG, error)
        self._send()

    def _send(self) -> None:
        """Send each tracker the entries that it does not have yet."""
        for name in list(self._names):
            state = self._sent.setdefault(name, {"sent": 0})
            before = dict(state)
            try:
                if name not in self._open:
                    self._open[name] = TRACKERS[name](self._folder.path, state.get("id"), self._settings)
                    state["id"] = self._open[name].version
                for entry in self.entries[state["sent"] :]:
                    values = {f"{entry.what}/{key}": value for key, value in entry.values.items()}
                    self._open[name].log_metrics(values, entry.step)
                    state["sent"] += 1
            except AdagaussError:
                raise
            except Exception as error:  # trackers raise their own errors
                self._give_up(name, error)
            if state != before:
                self._folder.write_json(SENT, self._sent)

    def _give_up(self, name: str, error: Exception) -> None:
        """Stop using a tracker for the rest of this process; the run goes on."""
        self._names.remove(name)
        self._reporter.message(
            f"--logger {name} does not work ({type(error).__name__}: {str(error)[:200]}): the run goes on, its log is "
            f"in {self._folder.path / LOG}, and resuming it with --logger {name} sends the rest"
        )


def read_log(path: Path) -> tuple[str, list[Entry]]:
    """Read the text of a log and its entries; damaged lines, as after a crash, are skipped."""
    try:
        text = read_text(path)
    except (OSError, UnicodeError, IrregularFileError):
        return "", []
    grouped: dict[tuple[str, int, int | None], Entry] = {}
    for row in csv.reader(io.StringIO(text)):
        try:
            what, task, epoch, step, name, value = row
            entry = Entry(what, int(task), int(epoch) if epoch else None, int(step), {name: float(value)})
        except ValueError:  # the header, or a line that was cut off
            continue
        before = grouped.get(entry.key)
        values = {**before.values, **entry.values} if before else entry.values
        grouped[entry.key] = Entry(*entry.key, before.step if before else entry.step, values)
    return text, list(grouped.values())
