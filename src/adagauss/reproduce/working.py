"""Run the cells that are missing; one that fails is a value, and the rest goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError
from adagauss.progress import Reporter
from adagauss.reproduce.cells import Cell, Problem
from adagauss.runs.folder import InUseError
from adagauss.runs.runner import run

Problems = Mapping[Path, Problem]


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


def run_missing(cells: Sequence[Cell], datasets: Datasets, reporter: Reporter) -> Problems:
    """Run what is not finished, continuing what was begun; the problems of those that still are not, by folder.

    A cell that another process is working on is left to it: the same command may be started once per core.
    """
    problems: dict[Path, Problem] = {}
    with reporter.progress("cells", len(cells)) as advance:
        for cell in cells:
            note = cell.name
            if isinstance(cell.result(), Problem):
                try:
                    data = datasets.of(cell.config.stream)
                    run(cell.config, cell.folder.path, resume=True, reporter=reporter, dataset=data)
                except InUseError as error:
                    problems[cell.folder.path] = Problem("busy", str(error))
                    note = f"{cell.name}: in work elsewhere"
                except (AdagaussError, MemoryError, torch.cuda.OutOfMemoryError) as error:
                    problems[cell.folder.path] = Problem("failed", str(error) or "not enough memory")
                    note = f"{cell.name} failed"
            advance(note)
    return problems
