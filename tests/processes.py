"""Processes of their own for tests that kill them."""

from __future__ import annotations

import io
import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Any

FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()
PRELOADED = [
    "adagauss.experiments",
    "adagauss.cli",
    "adagauss.deploy.serve.app",
    "lightning_fabric",
    "sklearn.datasets",
]
PROCESSES: Any = multiprocessing.get_context("forkserver" if FORKSERVER else "spawn")


def event() -> Event:
    """A sign that a process can give to another."""
    made: Event = PROCESSES.Event()
    return made


def pipe() -> tuple[Connection, Connection]:
    """The end to read from, and the end that a process may be given to write to."""
    ends: tuple[Connection, Connection] = PROCESSES.Pipe(duplex=False)
    return ends


def preload() -> None:
    """Have the processes forked from one that has imported the library."""
    if FORKSERVER:
        PROCESSES.set_forkserver_preload(PRELOADED)


def started(work: Callable[..., object], *given: Any) -> BaseProcess:
    """A process that does this work and nothing else; it ends with the tests at the latest.

    Importing torch takes longer than most of what is killed. So the children are forked, where the system can, from
    one process that has imported it and computed nothing yet: each is as new as one that was started by itself.
    """
    preload()
    process: BaseProcess = PROCESSES.Process(target=work, args=given, daemon=True)
    process.start()
    return process


def printed(work: Callable[..., object], *given: Any) -> str:
    """What a function of a module prints in a process of its own; fails with its traceback."""
    reader, writer = pipe()
    process = started(_print_to, writer, work, given)
    writer.close()
    text, error = reader.recv()
    process.join()
    assert not error, error
    return str(text)


def _print_to(writer: Connection, work: Callable[..., object], given: tuple[Any, ...]) -> None:
    text, error = io.StringIO(), ""
    try:
        with redirect_stdout(text):
            work(*given)
    except BaseException:
        error = traceback.format_exc()
    writer.send((text.getvalue(), error))
