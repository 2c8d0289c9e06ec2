"""Run the cells that are missing; one that fails is a value, and the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.reproduce.cells import Cell, Problem
from adagauss.runs.cells import Cell as RunCell
from adagauss.runs.cells import Outcome
from adagauss.runs.folder import InUseError
from adagauss.runs.scheduling import run_cells
from adagauss.utils.progress import Reporter


class Datasets:
    """Reads the dataset of a stream, and keeps the last one: runs on it follow each other."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._last: tuple[tuple[str, int | None, bool], Dataset] | None = None

    def of(self, stream: StreamConfig) -> Dataset:
        """The dataset of a stream, at the size of its images."""
        key = stream.dataset, stream.image_size, stream.skip_bad_images
        if self._last is None or self._last[0] != key:
            self._last = None  # so that two are never in memory
            options = replace(self.options, size=stream.image_size, skip_bad_images=stream.skip_bad_images)
            self._last = key, load_dataset(stream.dataset, options)
        return self._last[1]


def run_missing(
    cells: Sequence[Cell],
    datasets: Datasets,
    reporter: Reporter,
    executor: Executor | None = None,
    most: int | None = None,
) -> None:
    """Run what is not finished, continuing what was begun, here or through an executor, ``most`` at a time.

    A cell that another process is working on is left to it: the same command may be started once per core.
    """
    missing = {cell.folder.path: cell for cell in cells if isinstance(cell.result(), Problem)}

    def note(ran: RunCell, outcome: Outcome) -> None:
        cell = missing[ran.folder]
        if isinstance(outcome.failure, InUseError):
            reporter.message(f"{cell.name}: in work elsewhere")
        elif outcome.failure is not None:
            cell.failures.note(cell.name, str(outcome.failure))
        else:
            cell.failures.forget(cell.name)

    if missing:
        run_cells(
            [RunCell(cell.name, cell.config, path) for path, cell in missing.items()],
            cells[0].runs,
            then=note,
            executor=executor,
            most=most,
            options=datasets.options,
            reader=datasets.of,
            reporter=reporter,
            title="cells",
        )
