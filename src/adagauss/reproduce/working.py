"""Run the cells that are missing; one that fails is a value, and the rest goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError
from adagauss.progress import Reporter
from adagauss.reproduce.cells import Cell, Problem
from adagauss.runs.folder import InUseError
from adagauss.runs.runner import run


class Datasets:
    """Reads the dataset of a stream, and keeps the last one: runs on it follow each other."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._last: tuple[tuple[str, int | None], Dataset] | None = None

    def of(self, stream: StreamConfig) -> Dataset:
        """The dataset of a stream, at the size of its images."""
        key = stream.dataset, stream.image_size
        if self._last is None or self._last[0] != key:
            self._last = None  # so that two are never in memory
            options = replace(self._options, size=stream.image_size, skip_bad_images=stream.skip_bad_images)
            self._last = key, load_dataset(stream.dataset, options)
        return self._last[1]


def run_missing(cells: Sequence[Cell], datasets: Datasets, reporter: Reporter) -> None:
    """Run what is not finished, continuing what was begun.

    A cell that another process is working on is left to it: the same command may be started once per core.
    """
    with reporter.progress("cells", len(cells)) as advance:
        for cell in cells:
            advance(_run(cell, datasets, reporter) if isinstance(cell.result(), Problem) else cell.name)


def _run(cell: Cell, datasets: Datasets, reporter: Reporter) -> str:
    """Run a cell; returns a note on how it went."""
    try:
        data = datasets.of(cell.config.stream)
        run(cell.config, cell.folder.path, resume=True, reporter=reporter, dataset=data)
    except InUseError:
        return f"{cell.name}: in work elsewhere"
    except (AdagaussError, MemoryError, torch.cuda.OutOfMemoryError) as error:
        cell.failures.note(cell.name, str(error) or "not enough memory")
        return f"{cell.name} failed"
    cell.failures.forget(cell.name)
    return cell.name
