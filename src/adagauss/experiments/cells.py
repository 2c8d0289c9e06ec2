"""A cell: one run of a comparison, which any process on any machine can carry out. Failures are values."""

from __future__ import annotations

import socket
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.data.fingerprint import fingerprints
from adagauss.errors import AdagaussError, CheckpointError, DataError, WorkerError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import RunResult
from adagauss.experiments.runner import ValidationSplit, run
from adagauss.experiments.session import PATIENCE, AbandonedError, SessionReporter
from adagauss.utils.process import is_out_of_memory
from adagauss.utils.progress import Reporter

TRACEBACK = "error.txt"
"""File in the folder of a cell that ended with an error nobody foresaw."""


SILENT = Reporter()
"""One for all, so that equal options are equal."""


@dataclass(frozen=True)
class Cell:
    """A configuration and the folder of its run; a run that is there already is continued, or only read."""

    name: str
    config: RunConfig
    folder: Path
    trackers: tuple[str, ...] = ()
    rehearsal: ValidationSplit | None = None
    """Run only this part of the data."""
    until: int | None = None
    """Stop after this many tasks."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell."""

    result: RunResult | None = None
    failure: AdagaussError | None = None
    messages: tuple[str, ...] = ()
    abandoned: bool = False
    """Whether it only stopped because nobody seemed to wait for it."""


@dataclass(frozen=True)
class Orders:
    """What a worker of a session has to know beside its cell."""

    session: Path
    options: ReadOptions = field(default_factory=ReadOptions)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of the cell's data as the waiting process sees them; empty if it cannot read them."""
    threads: int = 1
    patience: float = PATIENCE

    @classmethod
    def of(cls, session: Path, options: ReadOptions | None) -> Orders:
        """Orders that can be sent to other processes: a reporter cannot."""
        root = (options or ReadOptions()).root.absolute()
        return cls(session.absolute(), replace(options or ReadOptions(), reporter=SILENT, root=root))


def attempt(cell: Cell, dataset: Callable[[], Dataset], reporter: Reporter) -> Outcome:
    """Run a cell here. Whatever goes wrong is a value, except what stops the whole process."""
    try:
        config, data = cell.config, dataset()
        if cell.rehearsal is not None:
            config, data = cell.rehearsal.of(config, data)
        ways: dict[str, Any] = {"trackers": cell.trackers, "until": cell.until}
        return Outcome(run(config, cell.folder, resume=True, reporter=reporter, dataset=data, **ways))
    except AbandonedError as error:
        return Outcome(failure=error, abandoned=True)
    except AdagaussError as error:
        return Outcome(failure=error)
    except OSError as error:
        return Outcome(failure=CheckpointError(f"{error.filename or cell.folder}: {error.strerror or error}"))
    except Exception as error:
        if is_out_of_memory(error):
            return Outcome(failure=WorkerError("the memory is full: run fewer cells at once, or a smaller network"))
        with suppress(OSError):
            cell.folder.mkdir(parents=True, exist_ok=True)
            (cell.folder / TRACEBACK).write_text(traceback.format_exc(), encoding="utf-8", errors="backslashreplace")
        found = f"unexpected error ({type(error).__name__}: {error})"
        return Outcome(failure=WorkerError(f"{found}; {cell.folder / TRACEBACK} shows where"))


def work(cell: Cell, number: int, orders: Orders) -> Outcome:
    """Run a cell in a worker, as number ``number`` of a session; this is what executors are given."""
    torch.set_num_threads(orders.threads)
    try:
        reporter = SessionReporter(orders.session, number, orders.patience)
    except AdagaussError as error:
        return Outcome(failure=error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        outcome = attempt(cell, lambda: _same_data(cell, orders), reporter)
    messages: Sequence[str] = [*reporter.messages, *(str(warning.message) for warning in caught)]
    return replace(outcome, messages=tuple(dict.fromkeys(messages)))


def data_of(cell: Cell, options: ReadOptions | None) -> Dataset:
    """The data of a cell, read here; those of the cell before are kept, since cells of a dataset follow each other."""
    return _read(*_what(cell, options or ReadOptions()))[0]


def digests_of(cell: Cell, options: ReadOptions) -> dict[str, str]:
    """The fingerprints of the data of a cell, read here."""
    return _read(*_what(cell, options))[1]


def _same_data(cell: Cell, orders: Orders) -> Dataset:
    """The data as this machine has them, which must be those of the process that waits."""
    try:
        dataset, found = _read(*_what(cell, orders.options))
    except DataError as error:
        raise DataError(f"{socket.gethostname()}: {error}") from error
    differing = [aspect for aspect, digest in orders.fingerprints.items() if found.get(aspect) != digest]
    if differing:
        raise DataError(
            f"{socket.gethostname()} reads other data ({', '.join(differing)}) below {orders.options.root}: "
            "give all machines the same files, or a folder that they share"
        )
    return dataset


def _what(cell: Cell, options: ReadOptions) -> tuple[str, ReadOptions]:
    stream = cell.config.stream
    chosen = replace(options, size=stream.image_size, skip_bad_images=stream.skip_bad_images, reporter=SILENT)
    return stream.dataset, chosen


@lru_cache(maxsize=1)
def _read(name: str, options: ReadOptions) -> tuple[Dataset, dict[str, str]]:
    """Read once per process, not once per cell."""
    dataset = load_dataset(name, options)
    return dataset, fingerprints(dataset)
