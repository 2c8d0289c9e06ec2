"""The log of a run: a CSV file, and TensorBoard's files with the same numbers."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from adagauss.errors import CheckpointError, unknown_name
from adagauss.experiments.metrics import Evaluation, mean
from adagauss.experiments.run import RunFolder
from adagauss.utils.files import IrregularFileError, read_text, write_atomically
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import import_extra

if TYPE_CHECKING:
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

LOG, TENSORBOARD = "log.csv", "tensorboard"
COLUMNS = ("what", "task", "epoch", "step", "name", "value")
"""``what`` is a stage, such as ``training``, or ``accuracy``; ``step`` counts its epochs over the whole run."""
ACCURACY = "accuracy"

logger = logging.getLogger(__name__)


def check_logger(name: str | None) -> None:
    """Raise if a logger does not exist or is not installed."""
    if name not in (None, TENSORBOARD):
        raise unknown_name("logger", name, [TENSORBOARD])
    if name is not None:
        import_extra(name, name, f"--logger {name}")


class RunLog:
    """The log of the run in a folder, open for writing.

    Args:
        folder: the run folder.
        also: ``tensorboard``, or None for the CSV file alone.
        settings: what TensorBoard shows as hyperparameters.
        reporter: shows problems.
    """

    def __init__(
        self,
        folder: RunFolder,
        also: str | None = None,
        settings: Mapping[str, Any] | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        check_logger(also)
        self._path = folder.path / LOG
        self._also = also
        self._settings = settings or {}
        self._reporter = reporter or Reporter()
        self._tensorboard: TensorBoardLogger | None = None
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
        if self._also is not None:
            from lightning_fabric.loggers.tensorboard import TensorBoardLogger  # it imports torch's compiler

            folder = self._path.parent / TENSORBOARD
            is_new = not folder.exists()
            self._tensorboard = TensorBoardLogger(folder.parent, name="", version=TENSORBOARD, flush_secs=1)
            if is_new:
                self._tensorboard.log_hyperparams({key: str(value)[:500] for key, value in self._settings.items()})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tensorboard is not None:
            self._tensorboard.finalize("success" if kind is None else "failed")

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
        if self._tensorboard is not None:
            self._tensorboard.log_metrics({f"{what}/{name}": value for name, value in values.items()}, step)


def _lines(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
