"""The same picture in the folders of two classes: one of them is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from adagauss.errors import DataError
from adagauss.utils.files import open_regular

HEAD = 4096
Member = tuple[str, Path]
"""A class and one of its files."""


def in_several(members: Mapping[str, Iterable[Path]]) -> list[tuple[Path, Path]]:
    """Pairs of files of two classes with the same content.

    Files are compared by size, then by their first bytes; only those that agree so far are read as a whole.
    """
    found = []
    for sized in _alike([(label, path) for label, files in members.items() for path in files], _size):
        for begun in _alike(sized, lambda path: _digest(path, HEAD)):
            for same in _alike(begun, lambda path: _digest(path, None)):
                label, first = same[0]
                found += [(first, path) for other, path in same if other != label]
    return found


def _alike(files: Iterable[Member], key: Callable[[Path], object]) -> list[Sequence[Member]]:
    """Groups of files that agree in something and belong to more than one class."""
    groups: dict[object, list[Member]] = {}
    for label, path in files:
        groups.setdefault(key(path), []).append((label, path))
    return [group for group in groups.values() if len({label for label, _ in group}) > 1]


def _size(path: Path) -> object:
    try:
        return path.stat().st_size or path  # nothing at all is no picture
    except OSError:
        return path  # decoding says what is wrong with it


def _digest(path: Path, number: int | None) -> object:
    try:
        with open_regular(path) as file:
            whole = hashlib.file_digest(file, "sha256") if number is None else hashlib.sha256(file.read(number))
            return whole.digest()
    except (OSError, DataError):
        return path
