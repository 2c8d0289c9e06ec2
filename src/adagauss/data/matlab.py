"""One variable of a Matlab file (version 5), as lists, dictionaries, text and numbers.

This is our own reader for tables of datasets: SciPy's reader can crash the process on damaged files.
The format is a tree of elements, each a type, a length and that many bytes, padded to multiples of eight.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path
from typing import Any

from adagauss.utils.files import open_regular

HEADER = 128
MAX_BYTES = 2**28
"""Limit for a file, and for a compressed variable in it."""
MAX_DEPTH = 8
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS = {1: "latin1", 2: "latin1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMERIC = range(6, 16)


def read_variable(path: Path, name: str) -> Any:
    """The variable called ``name``; a `ValueError` or `LookupError` says what is wrong with the file.

    Cells become lists, arrays of structures lists of dictionaries, text strings, and numbers lists of numbers.
    """
    with open_regular(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError("it is too large for a table")
    if len(content) < HEADER or content[126:128] not in (b"IM", b"MI"):
        raise ValueError("it is not a Matlab file of version 5")
    order = "<" if content[126:128] == b"IM" else ">"
    elements = _Elements(memoryview(content)[HEADER:], order)
    while not elements.done:
        kind, data = elements.next()
        if kind == _COMPRESSED:
            kind, data = _Elements(_decompressed(data), order).next()
        if kind == _MATRIX:
            matrix = _Matrix(data, order)
            if matrix.name == name:
                return matrix.value(MAX_DEPTH)
    raise LookupError(f"it has no {name!r}")


def _decompressed(data: memoryview) -> memoryview:
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof:
        raise ValueError("a compressed part is truncated, or far too large for a table")
    return memoryview(content)


class _Elements:
    """The elements in a sequence of bytes, one after the other."""

    def __init__(self, data: memoryview, order: str) -> None:
        self._data = data
        self._order = order
        self._place = 0

    @property
    def done(self) -> bool:
        return self._place >= len(self._data)

    def next(self) -> tuple[int, memoryview]:
        """Type and content of the next element."""
        tag = self._data[self._place : self._place + 8]
        if len(tag) < 8:
            raise ValueError("it ends too soon")
        kind, size = struct.unpack(f"{self._order}II", tag)
        if kind >> 16:  # up to four bytes are stored in the tag itself
            kind, size = kind & 0xFFFF, kind >> 16
            start, step, most = self._place + 4, 8, 4
        else:
            start = self._place + 8
            step = 8 + size + (0 if kind == _COMPRESSED else -size % 8)
            most = len(self._data) - start
        if size > most:
            raise ValueError("it ends too soon")
        self._place += step
        return kind, self._data[start : start + size]

    def numbers(self) -> list[int | float]:
        kind, data = self.next()
        if kind not in _NUMBERS:
            raise ValueError("numbers of an unknown type")
        form = struct.Struct(self._order + _NUMBERS[kind])
        if len(data) % form.size:
            raise ValueError("an incomplete number")
        return [value for (value,) in form.iter_unpack(data)]

    def text(self) -> str:
        kind, data = self.next()
        if kind not in _TEXTS:
            raise ValueError("text of an unknown type")
        encoding = _TEXTS[kind]
        if encoding in ("utf-16", "utf-32"):
            encoding += "-le" if self._order == "<" else "-be"
        return bytes(data).decode(encoding)


class _Matrix:
    """A matrix: its class, size and name, and the elements that hold its content."""

    def __init__(self, data: memoryview, order: str) -> None:
        self._order = order
        self._elements = _Elements(data, order)
        self.name = ""
        self._class, self._count = 0, 0
        if self._elements.done:  # an empty matrix has no class
            return
        flags, sizes = self._elements.numbers(), self._elements.numbers()
        if not flags or not sizes or any(type(size) is not int or size < 0 for size in (*flags, *sizes)):
            raise ValueError("a matrix without a class or size")
        self._class, self._count = int(flags[0]) & 0xFF, math.prod(map(int, sizes))
        if self._count > MAX_BYTES:
            raise ValueError("a matrix larger than its file")
        self.name = self._elements.text()

    def value(self, depth: int) -> Any:
        if depth == 0:
            raise ValueError("it is nested too deeply for a table")
        if self._class == _CHAR:
            return self._elements.text() if self._count else ""
        if self._class in _NUMERIC:
            numbers = self._elements.numbers() if self._count else []
            if len(numbers) != self._count:
                raise ValueError("a matrix with more or fewer numbers than its size")
            return numbers
        if self._class == _CELL:
            return [self._inner(depth) for _ in range(self._count)]
        if self._class == _STRUCT:
            fields = self._fields()
            return [{field: self._inner(depth) for field in fields} for _ in range(self._count if fields else 0)]
        if self._class == 0:
            return []
        raise ValueError("a matrix of a class that tables do not have")

    def _inner(self, depth: int) -> Any:
        kind, data = self._elements.next()
        if kind != _MATRIX:
            raise ValueError("something else where a matrix should be")
        return _Matrix(data, self._order).value(depth - 1)

    def _fields(self) -> list[str]:
        lengths = self._elements.numbers()
        names = self._elements.text()
        length = int(lengths[0]) if len(lengths) == 1 else 0
        if not 1 <= length <= 64 or len(names) % length:
            raise ValueError("a structure without names")
        return [names[start : start + length].partition("\0")[0] for start in range(0, len(names), length)]
