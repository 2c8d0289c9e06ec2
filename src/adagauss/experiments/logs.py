"""The log of a run: a CSV file, and the experiment trackers that follow it."""

from __future__ import annotations

import csv
import io
import logging
import os
import re
from abc import ABC, abstractmethod
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time
from types import TracebackType
from typing import Any, Self

import numpy as np
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from PIL import Image

from adagauss.errors import AdagaussError, CheckpointError, unknown_name
from adagauss.experiments.metrics import Evaluation, mean
from adagauss.experiments.run import RunFolder
from adagauss.utils.files import IrregularFileError, read_text, write_atomically
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import import_extra

TRACKERS: Mapping[str, str] = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""The library of each tracker; its extra has the name of the tracker."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise if a tracker does not exist or is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        import_extra(TRACKERS[name], name, f"--log {name}")


class Opened:
    """A tracker at work on one run."""

    def __init__(self, name: str, folder: Path, known: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.sent = int(known.get("sent", 0))
        self.broken = False
        self.drawn = bool(known.get("drawn"))
        identity = known.get("id")
        self._logger: FigureLogger | None = MAKERS[name](folder, identity)
        self._id = str(self._logger.version)
        if identity is None:
            self._logger.log_hyperparams({key: _short(value) for key, value in settings.items()})

    @classmethod
    def failed(cls, name: str, known: Mapping[str, Any]) -> Opened:
        """A tracker that could not be opened."""
        made = cls.__new__(cls)
        made.sent, made.broken, made._logger, made._id = int(known.get("sent", 0)), True, None, str(known.get("id"))
        made.drawn = bool(known.get("drawn"))
        return made

    def send(self, values: dict[str, float], step: int) -> None:
        """Send one entry of a log, which must arrive even if this process is killed next."""
        if self._logger is not None:
            self._logger.log_metrics(values, step)
            self._logger.save()
            self.sent += 1

    def draw(self, files: Sequence[Path]) -> None:
        """Send the figures of a finished run, once."""
        if self._logger is not None and not self.drawn:
            self._logger.log_figures(files)
            self.drawn = True

    def facts(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {"sent": self.sent, "id": self._id, "drawn": self.drawn}

    def finalize(self, status: str) -> None:
        if self._logger is not None and not self.broken:
            self._logger.finalize(status)


def _short(value: Any) -> str | int | float:
    return value if isinstance(value, (int, float)) else str(value)[:500]


PROJECT = "adagauss"
PARAMETERS_AT_ONCE = 100
"""How many settings MLflow takes in one request."""


class FigureLogger(Logger, ABC):
    """A logger that takes pictures too."""

    @abstractmethod
    def log_figures(self, files: Sequence[Path]) -> None:
        """Send picture files, each under its name."""


class TensorBoardFolder(TensorBoardLogger, FigureLogger):
    """The folder ``tensorboard`` of a run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, name="", version="tensorboard")

    def log_figures(self, files: Sequence[Path]) -> None:
        for file in files:
            with Image.open(file) as picture:
                self.experiment.add_image(f"figures/{file.stem}", np.asarray(picture.convert("RGB")), dataformats="HWC")
        self.save()


class MlflowLogger(FigureLogger):
    """A run of the experiment ``adagauss`` at MLFLOW_TRACKING_URI."""

    def __init__(self, name: str, identity: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._param = Metric, Param
        # A tracker that does not answer must not stop a run for an hour.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        self._client = MlflowClient()
        if identity is None:
            experiment = self._client.get_experiment_by_name(PROJECT)
            place = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
            identity = str(self._client.create_run(place, run_name=name).info.run_id)
        else:
            self._client.update_run(identity, status="RUNNING")
        self._id = identity

    @property
    def name(self) -> str:
        return PROJECT

    @property
    def version(self) -> str:
        return self._id

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        now = int(1000 * time())
        self._client.log_batch(
            self.version, metrics=[self._metric(key, value, now, step or 0) for key, value in metrics.items()]
        )

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        given = vars(params) if isinstance(params, Namespace) else params
        made = [self._param(key, str(value)) for key, value in given.items()]
        for start in range(0, len(made), PARAMETERS_AT_ONCE):
            self._client.log_batch(self.version, params=made[start : start + PARAMETERS_AT_ONCE])

    def log_figures(self, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._id, str(file), "figures")

    def save(self) -> None:
        """Requests have been answered already."""

    def finalize(self, status: str) -> None:
        self._client.set_terminated(self.version, "FINISHED" if status == "success" else "FAILED")


class WandbLogger(FigureLogger):
    """A run of the project ``adagauss``, or of WANDB_PROJECT."""

    def __init__(self, folder: Path, identity: str | None) -> None:
        import wandb

        settings = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=str(folder),
            id=identity,
            resume="allow",
            settings=settings,
        )
        self._image = wandb.Image
        self._axes: set[str] = set()

    @property
    def name(self) -> str:
        return PROJECT

    @property
    def version(self) -> str:
        return str(self._run.id)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        # Stages have steps of their own, so that the axis of each is its epochs or tasks.
        for group in {key.partition("/")[0] for key in metrics}:
            if group not in self._axes:
                self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
                self._axes.add(group)
            metrics = {**metrics, f"{group}/step": float(step or 0)}
        self._run.log(metrics)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self._run.config.update(vars(params) if isinstance(params, Namespace) else params, allow_val_change=True)

    def log_figures(self, files: Sequence[Path]) -> None:
        self._run.log({f"figures/{file.stem}": self._image(str(file)) for file in files})

    def save(self) -> None:
        """A process of its own sends what it was given, also after this one is killed."""

    def finalize(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "success" else 1)


MAKERS: dict[str, Callable[[Path, str | None], FigureLogger]] = {
    "tensorboard": lambda folder, identity: TensorBoardFolder(folder),
    "mlflow": lambda folder, identity: MlflowLogger(folder.name, identity),
    "wandb": WandbLogger,
}


LOG, SENT = "log.csv", "log.json"
HEADS = ("what", "task", "epoch", "step", "name", "value")
ACCURACY = "accuracy"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """What was measured at one moment."""

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
        """As lines of the file."""
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
        self._trackers = tuple(dict.fromkeys(trackers))
        self._settings = dict(settings or {})
        self._reporter = reporter or Reporter()
        self._opened: dict[str, Opened] = {}
        self._sent: dict[str, Any] = {}
        self.entries: list[Entry] = []
        self._known: set[tuple[str, int, int | None]] = set()
        self._steps: Counter[str] = Counter()
        self._task = 1
        self._writes = True

    def __enter__(self) -> Self:
        text, self.entries = read_log(self._folder.path / LOG)
        whole = ",".join(HEADS) + "\n" + "".join(entry.lines() for entry in self.entries)
        if text != whole:  # new, or cut off when the process was killed
            try:
                write_atomically(self._folder.path / LOG, whole.encode("utf-8"))
            except CheckpointError as error:  # numbers of the run do not depend on it
                self._reporter.message(f"{error} The run goes on without a log.")
                self._writes = False
        self._known = {entry.key for entry in self.entries}
        self._steps = Counter(entry.what for entry in self.entries)
        self._sent = self._folder.read_json_or_nothing(SENT) if (self._folder.path / SENT).exists() else {}
        self._follow()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._opened):
            self._safely(name, lambda tracker: tracker.finalize("success" if kind is None else "failed"))

    def begin(self, index: int) -> None:
        """What comes now is of this task, counted from 0; joint training calls each of its tasks the first."""
        self._task = index + 1

    def epoch(self, stage: str, epoch: int, losses: Mapping[str, float]) -> None:
        """The mean of each loss in an epoch, from 0, of a stage such as ``task 2: training``."""
        place, _, what = stage.partition(": ")
        # What is tried without some images is a stage of its own.
        aside = re.sub(r"^(after )?task \d+", "", place)
        self._add(what + aside, self._task, epoch + 1, losses)

    def evaluation(self, index: int, evaluation: Evaluation) -> None:
        """Accuracies after a task, from 0: of all seen classes, tasks weighted equally, and of each task."""
        per_task = evaluation.accuracy_per_task()
        values = {"all": mean(per_task), **{f"task {task + 1}": one for task, one in enumerate(per_task)}}
        self._add(ACCURACY, index + 1, None, values)

    def figures(self, files: Sequence[Path]) -> None:
        """Send the figures of a finished run to the trackers."""
        pictures = [file for file in files if file.suffix == ".png"]
        for name, tracker in self._opened.items():
            if not tracker.broken and self._safely(name, lambda tracker: tracker.draw(pictures)):
                self._note(name, tracker)

    def _add(self, what: str, task: int, epoch: int | None, values: Mapping[str, float]) -> None:
        if (what, task, epoch) in self._known:  # repeated since a run was killed
            return
        self._steps[what] += 1
        entry = Entry(what, task, epoch, self._steps[what], dict(values))
        self._known.add(entry.key)
        self.entries.append(entry)
        self._append(entry.lines())
        self._follow()

    def _append(self, lines: str) -> None:
        try:
            if self._writes:
                with (self._folder.path / LOG).open("a", encoding="utf-8", newline="") as file:
                    file.write(lines)
        except OSError as error:  # what the run itself keeps is more important, and says more if it cannot be kept
            logger.warning("%s could not be written: %s", self._folder.path / LOG, error)

    def _follow(self) -> None:
        """Send each tracker what it has not got yet."""
        for name in self._trackers:
            if name not in self._opened:
                known = self._sent.get(name)
                sound = isinstance(known, dict) and isinstance(known.get("sent"), int)
                self._safely(name, lambda tracker: None, known if sound else {})
            tracker = self._opened.get(name)
            if tracker is None or tracker.broken:
                continue
            for entry in self.entries[tracker.sent :]:
                values = {f"{entry.what}/{key}": value for key, value in entry.values.items()}
                if not self._safely(name, lambda tracker, v=values, s=entry.step: tracker.send(v, s)):
                    break
            self._note(name, tracker)

    def _note(self, name: str, tracker: Opened) -> None:
        """Keep how far a tracker has come."""
        if tracker.facts() != self._sent.get(name):
            self._sent[name] = tracker.facts()
            self._folder.write_json(SENT, self._sent)

    def _safely(self, name: str, act: Any, known: Mapping[str, Any] | None = None) -> bool:
        """Use a tracker; one that fails is left alone for the rest of this process, and the run goes on."""
        try:
            if name not in self._opened:
                self._opened[name] = Opened(name, self._folder.path, known or {}, self._settings)
            act(self._opened[name])
        except AdagaussError:
            raise
        except Exception as error:  # trackers raise errors of their own
            self._opened.setdefault(name, Opened.failed(name, known or {})).broken = True
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            self._reporter.message(
                f"--log {name} does not work ({reason}): the run goes on, its log is in {self._folder.path / LOG}, and "
                f"resuming it with --log {name} sends the rest"
            )
            return False
        return True


def read_log(path: Path) -> tuple[str, list[Entry]]:
    """The text of a log, and its entries; what cannot be read, as after a crash, is left out."""
    try:
        text = read_text(path)
    except (OSError, UnicodeError, IrregularFileError):
        return "", []
    grouped: dict[tuple[str, int, int | None], Entry] = {}
    for row in csv.reader(io.StringIO(text)):
        try:
            what, task, epoch, step, name, value = row
            entry = Entry(what, int(task), int(epoch) if epoch else None, int(step), {name: float(value)})
        except ValueError:  # the heads, or a line that was cut off
            continue
        before = grouped.get(entry.key)
        values = {**before.values, **entry.values} if before else entry.values
        grouped[entry.key] = Entry(*entry.key, before.step if before else entry.step, values)
    return text, list(grouped.values())
