"""Atomic replacement of files: a file is replaced completely or not at all, even if the machine stops."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path

from adagauss.errors import CheckpointError

logger = logging.getLogger(__name__)

STALE_SECONDS = 3600.0
TEMPORARY = re.compile(r"\.adagauss-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{16}\.tmp")
"""Names of temporary files. They name the writing process, so that leftovers of killed processes can be removed."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file by these bytes; after a crash or on a full disk the old file is still complete."""

    def write(file: BufferedWriter) -> None:
        file.write(data)

    replace_atomically(path, write, mode=mode)


def replace_atomically(path: Path, write: Callable[[BufferedWriter], None], *, mode: int = 0o666) -> None:
    """Replace a file by what ``write`` puts into it, with permissions ``mode`` less the umask.

    The file is written beside the target under a temporary name, forced to disk, and renamed; then the folder is forced
    to disk, since it holds the new name. Several threads or processes may replace one target: the last one wins.
    """
    temporary = path.with_name(_temporary_name())
    try:
        _make_folder(path.parent)
        _sweep(path.parent)
        with _create(temporary, mode) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:  # an interrupt must not leave a gigabyte behind either
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise CheckpointError(
            f"{path} could not be written ({error.strerror or error}); the old file is unchanged. "
            "Free some space or choose another folder, then try again."
        ) from error
    _sync_folder(path.parent)


def move_atomically(source: Path, target: Path) -> None:
    """Put a complete file, already forced to disk, in the place of another of the same folder tree."""
    try:
        source.replace(target)
    except OSError as error:
        raise CheckpointError(f"{target} could not be replaced ({error.strerror}); it is unchanged") from error
    _sync_folder(target.parent)
    if source.parent != target.parent:
        _sync_folder(source.parent)


def remove_lastingly(folder: Path, paths: Iterable[Path]) -> None:
    """Remove files of a folder, so that they do not come back after a power cut; missing ones are passed over."""
    for path in paths:
        path.unlink(missing_ok=True)
    _sync_folder(folder)


def _create(path: Path, mode: int) -> BufferedWriter:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")


def _make_folder(folder: Path) -> None:
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in made:
        _sync_folder(place.parent)


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:  # some file systems cannot do this; the file itself is complete either way
        logger.debug("%s was not forced to disk: %s", folder, error)


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _temporary_name() -> str:
    return f".adagauss-{_host()}-{os.getpid()}-{secrets.token_hex(8)}.tmp"


def _sweep(folder: Path) -> None:
    """Remove leftovers of killed processes: files unchanged for an hour, or of a process that no longer runs."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = TEMPORARY.fullmatch(entry.name)
            if match is None:
                continue
            with suppress(OSError):  # another process may sweep as well
                old = time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_SECONDS
                # Process ids say nothing about another machine that shares the folder.
                if old or (match["host"] == _host() and not _alive(int(match["pid"]))):
                    (folder / entry.name).unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # a process of another user
        return True
    return True
