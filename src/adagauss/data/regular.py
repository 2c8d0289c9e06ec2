"""Opening files that are files: a pipe would wait for ever, a device has no end."""

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
    """Something that stands where a file should; ``kind`` is what it is."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(f"{path} is {kind}, not a file: put a file in its place or leave it out")
        self.kind = kind


def irregular(mode: int) -> str | None:
    """What something is that is not a file, from its ``st_mode``; None for a file."""
    if stat.S_ISREG(mode):
        return None
    return next((word for test, word in _KINDS if test(mode)), "something else")


def open_regular(path: Path) -> BufferedReader:
    """A file opened for reading; anything that is not a file is refused with a sentence, and never waited for."""
    _require_regular(path, path.stat().st_mode)  # opening a device may already do something
    # Without waiting for a writer, should it have become a pipe since; what was opened is looked at once more.
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
