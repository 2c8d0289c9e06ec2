"""The same picture in the folders of two classes: one of them is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from adagauss.data.regular import open_regular
from adagauss.errors import DataError


def in_several(members: Mapping[str, Iterable[Path]]) -> list[tuple[Path, Path]]:
    """Pairs of files of two classes with the same content; only files of the same size are read."""
    by_size: dict[int, list[tuple[str, Path]]] = {}
    for label, files in members.items():
        for path in files:
            by_size.setdefault(_size(path), []).append((label, path))
    found = []
    for size, alike in by_size.items():
        if size < 1 or len({label for label, _ in alike}) < 2:
            continue
        first: dict[str, tuple[str, Path]] = {}
        for label, path in alike:
            other, before = first.setdefault(_digest(path), (label, path))
            if other != label:
                found.append((before, path))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # decoding says what is wrong with it


def _digest(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, DataError):
        return str(path)
