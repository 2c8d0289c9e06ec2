"""Faults at writes: the n-th call that changes the disk fails, or is the last one before the process is killed."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FULL = "full disk"
KILL = "kill"
BROKEN = "broken disk"
STAYS_FULL = "disk that stays full"
CREATES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class KilledError(BaseException):
    """In the place of a signal: after it the process does nothing any more, not even clean up."""


class Disk:
    """Counts the calls that change the disk, and lets one of them fail."""

    def __init__(self, fail: int | None = None, how: str = FULL) -> None:
        self.fail, self.how = fail, how
        self.calls: list[str] = []
        self.killed = False

    def step(self, name: str) -> None:
        """Note a call; raise if it is the one to fail, or if the process is dead."""
        if self.killed:
            raise KilledError
        self.calls.append(name)
        place, grows = len(self.calls) - 1, name in ("mkdir", "open", "write")
        if self.fail is None or place < self.fail:
            return
        if place == self.fail and self.how == KILL:
            self.killed = True
            raise KilledError
        if place == self.fail or (self.how == STAYS_FULL and grows):
            number = errno.EIO if self.how == BROKEN else errno.ENOSPC
            raise OSError(number, os.strerror(number))

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.step(name)
            return function(*arguments, **more)

        return call


@contextmanager
def faulty(disk: Disk) -> Iterator[Disk]:
    """Every change of the disk goes through ``disk``, which may refuse it."""
    open_, fdopen = os.open, os.fdopen

    class Writer(io.BufferedWriter):
        writes = 0

        def write(self, data: Any) -> int:
            self.writes += 1
            # The header, the first tensor and something within a file stand for all others.
            if self.writes <= 3 or disk.killed:
                disk.step("write")
            return super().write(data)

    def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & CREATES:
            disk.step("open")
        return open_(path, flags, *more, **named)

    def wrapped(descriptor: int, mode: str = "r", *more: Any, **named: Any) -> Any:
        return Writer(io.FileIO(descriptor, "wb")) if mode == "wb" else fdopen(descriptor, mode, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", opened)
        patch.setattr(os, "fdopen", wrapped)
        for name in ("replace", "link", "fsync", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, disk.watched(name, getattr(os, name)))
        yield disk


def every_write(work: Callable[[], object]) -> list[str]:
    """The calls by which ``work`` changes the disk."""
    with faulty(Disk()) as disk:
        work()
    return disk.calls
