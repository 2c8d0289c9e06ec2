"""The thread between a process that waits for results and the processes that compute them: a folder they all see.

The waiting process changes the file ``beat`` there every few seconds; a worker that does not see it change ends its
work at the next step, so that nothing is left running or locked, whatever engine started the worker. Each worker writes
what it is doing into a file of its own, which the waiting process shows.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adagauss.errors import CheckpointError, WorkerError
from adagauss.utils.progress import Advance, Reporter, Work

PREFIX = ".session-"
BEAT = "beat"
BETWEEN_BEATS = 5.0
BETWEEN_LOOKS = 1.0
PATIENCE = 60.0
"""Seconds without a beat after which nobody is believed to wait: network folders show changes late."""
STALE = 86_400.0

logger = logging.getLogger(__name__)


class AbandonedError(WorkerError):
    """Nobody waits for this work any more."""


@contextmanager
def session(out: Path, every: float = BETWEEN_BEATS) -> Iterator[Path]:
    """A new session folder below ``out``, with a beating heart; it is removed in the end, which stops the workers."""
    folder = out / f"{PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir(parents=True)
        _sweep(out)
        _beat(folder, 0)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written ({error.strerror}): choose another --out") from error
    ended = threading.Event()

    def beats() -> None:
        count = 0
        while not ended.wait(every):
            count += 1
            with suppress(OSError):  # a disk that is full for a moment
                _beat(folder, count)

    thread = threading.Thread(target=beats, name="beats", daemon=True)
    thread.start()
    try:
        yield folder
    finally:
        ended.set()
        thread.join()
        shutil.rmtree(folder, ignore_errors=True)


def _beat(folder: Path, count: int) -> None:
    (folder / BEAT).write_text(str(count), encoding="ascii")


def _sweep(out: Path) -> None:
    """Remove the sessions of processes that were killed."""
    for folder in out.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - (folder / BEAT).stat().st_mtime > STALE:
                shutil.rmtree(folder, ignore_errors=True)


def status(folder: Path, number: int) -> dict[str, Any]:
    """Where a piece of work is done and what it is at; empty before it has begun."""
    try:
        content = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not begun, or it is being written at this moment
        return {}
    return content if isinstance(content, dict) else {}


class SessionReporter(Reporter):
    """Reports a worker's progress to its session, keeps its messages, and ends it if nobody waits for it any more."""

    def __init__(
        self,
        folder: Path,
        number: int,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.messages: list[str] = []
        self._folder = folder
        self._number = number
        self._patience = patience
        self._clock = clock
        self._open: list[Work] = []
        self._looked = self._changed = clock()
        self._last = self._read()
        if self._last is None:
            raise WorkerError(
                f"{socket.gethostname()} does not see {folder.parent}: runs on several machines need an --out folder "
                "that all of them share under one path"
            )
        self._write()

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "") -> Iterator[Advance]:
        work = Work(title, total, unit, started=0.0)
        self._open.append(work)

        def advance(note: str = "", step: float = 1.0) -> None:
            work.advance(note, step)
            if self._clock() - self._looked >= BETWEEN_LOOKS:
                self.look()

        try:
            yield advance
        finally:
            self._open.remove(work)

    def message(self, text: str) -> None:
        self.messages.append(text)

    def look(self) -> None:
        """Say what is done; raise if the session is over."""
        now = self._looked = self._clock()
        seen = self._read()
        if seen is not None and seen != self._last:
            self._last, self._changed = seen, now
        if not self._folder.exists() or now - self._changed > self._patience:
            raise AbandonedError("nobody waits for this run any more, so it stopped; it can be resumed")
        self._write()

    def _read(self) -> str | None:
        try:
            return (self._folder / BEAT).read_text(encoding="ascii")
        except OSError:
            return None

    def _write(self) -> None:
        # The first is the run itself, whose name is known; what it counts are its tasks.
        texts = [f"{work.count} {work.note}".rstrip() for work in self._open[:1]] + [*map(str, self._open[1:])]
        facts = {"where": f"{socket.gethostname()}:{os.getpid()}", "now": " | ".join(texts)}
        try:
            (self._folder / f"{self._number}.json").write_text(json.dumps(facts), encoding="utf-8")
        except OSError as error:  # it is only shown
            logger.info("no progress was reported: %s", error)
