"""Open regular files only: reading a pipe may block forever, and a device may have no end."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from adagauss.errors import DataError

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


class IrregularFileError(DataError):
    """Something other than a regular file; ``kind`` says what it is."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(f"{path} is {kind}, not a file: put a file in its place or leave it out")
        self.kind = kind


def irregular(mode: int) -> str | None:
    """What kind of non-regular file an ``st_mode`` describes; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    return next((word for test, word in _KINDS if test(mode)), "something else")


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; anything that is not a regular file is refused, without waiting for it."""
    _require_regular(path, path.stat().st_mode)  # opening a device may already have side effects
    # Non-blocking, in case the path has become a pipe since the check; the opened file is checked again.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(path: Path, mode: int) -> None:
    kind = irregular(mode)
    if kind is not None:
        raise IrregularFileError(path, kind)


def read_text(path: Path) -> str:
    """The text of an ordinary file: a pipe in its place is refused, not waited for."""
    with open_regular(path) as file:
        return file.read().decode("utf-8")
