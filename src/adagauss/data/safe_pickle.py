"""Read untrusted pickles as plain data: nothing is unpickled and no code runs.

Python's unpickler is not used: even with a list of allowed names, a pickle can call them with any arguments, reserve
gigabytes of memory from a file of a few bytes, and overflow the stack with keys that are nested a million times.

Binary pickles are read, protocols 2 to 5: the official CIFAR files, and copies that Python 3 wrote.
"""

from __future__ import annotations

import math
import os
import pickletools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adagauss.errors import DataError
from adagauss.utils.files import open_regular

_MARK = object()
_SHORT_TEXTS = 4096
"""Characters of names and type codes, which a pickle may use repeatedly."""
_NUMERIC = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
_EMPTY_BYTES = ("__builtin__ bytes", "builtins bytes")
_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_FROM_BUFFER = ("numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer")
_NDARRAY, _DTYPE, _ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
_KNOWN_NAMES = {_NDARRAY, _DTYPE, _ENCODE, *_EMPTY_BYTES, *_RECONSTRUCT, *_FROM_BUFFER}
_VALUES = re.compile(r"BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BIN(STRING|BYTES|UNICODE)8?|BYTEARRAY8")
"""Opcodes whose argument is the value."""
_OPCODES: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    op.code.encode("latin1"): (op.name, op.arg.reader if op.arg is not None else lambda _: None)
    for op in pickletools.opcodes
}


class _ForbiddenNameError(Exception):
    """A pickle refers to something other than plain data."""


@dataclass(frozen=True)
class _Name:
    """A name that pickles of plain arrays refer to; it is never imported."""

    name: str


@dataclass
class _NumberType:
    """An incomplete dtype: its code, and the byte order that its state sets later."""

    code: str
    order: str = "="


@dataclass
class _Unfilled:
    """An incomplete array: empty until its state is set."""

    array: npt.NDArray[Any] | None = None


class _BoundedStream:
    """A file that is never read beyond its end, so that a false length reserves no memory."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream
        self._left = os.fstat(stream.fileno()).st_size
        self.size = self._left

    def read(self, count: int) -> bytes:
        """Read exactly ``count`` bytes."""
        if not 0 <= count <= self._left:
            raise ValueError("it ends too soon")
        self._left -= count
        return self._stream.read(count)

    def readline(self) -> bytes:
        """Read a line with its end."""
        data = self._stream.readline()
        self._left -= len(data)
        return data


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle of plain values and numeric arrays; byte strings of Python 2 become text, arrays are read-only."""
    try:
        with open_regular(path) as stream:
            return _PickleReader(_BoundedStream(stream)).load()
    except _ForbiddenNameError as error:
        raise DataError(f"{path} refers to {error}, which plain data never needs: it may be malicious") from None
    except DataError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, struct.error, MemoryError) as error:
        raise DataError(f"{path} cannot be read; it is damaged or only partly extracted ({error})") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from error


class _PickleReader:
    """The stack machine of pickles, with the opcodes of plain data only; `pickletools` reads their arguments."""

    def __init__(self, stream: _BoundedStream) -> None:
        self._stream = stream
        self._spare = stream.size + _SHORT_TEXTS
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """Run the pickle and return its value."""
        while (code := self._stream.read(1)) != b".":
            if code not in _OPCODES:
                raise ValueError(f"opcode {code!r} is not one of plain data")
            name, read_argument = _OPCODES[code]
            self._apply(name, read_argument(self._stream))
        return self._pop()

    def _apply(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stack.append(_MARK)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_LIST" | "EMPTY_TUPLE" | "EMPTY_DICT":
                stack.append({"EMPTY_LIST": [], "EMPTY_TUPLE": (), "EMPTY_DICT": {}}[name])
            case "APPEND" | "APPENDS":
                items = [self._pop()] if name == "APPEND" else self._pop_to_mark()
                self._top(list).extend(items)
            case "TUPLE":
                stack.append(tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._pop_many(int(name[-1]))))
            case "SETITEM" | "SETITEMS":
                items = self._pop_many(2) if name == "SETITEM" else self._pop_to_mark()
                self._top(dict).update(_pairs(items))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._memo[len(self._memo) if argument is None else argument] = self._top(object)
            case "BINGET" | "LONG_BINGET":
                value = self._memo[argument]
                # An array is memoised while it is empty, and filled later.
                stack.append(value.array if isinstance(value, _Unfilled) and value.array is not None else value)
            case "GLOBAL" | "STACK_GLOBAL":
                words = argument if name == "GLOBAL" else " ".join(self._pop_many(2))  # a TypeError without text
                if words not in _KNOWN_NAMES:
                    raise _ForbiddenNameError(words[:200])
                stack.append(_Name(words))
            case "REDUCE" | "BUILD":
                target, values = self._pop_many(2)
                self._spend(values)
                stack.append(_call(target, values) if name == "REDUCE" else _set_state(target, values))
            case _ if _VALUES.fullmatch(name):
                stack.append(argument)
            case _:
                raise ValueError(f"opcode {name} is not one of plain data")

    def _pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("a value is missing")
        return self._stack.pop()

    def _pop_many(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    def _pop_to_mark(self) -> list[Any]:
        items: list[Any] = []
        while not self._stack or self._stack[-1] is not _MARK:
            items.append(self._pop())
        self._stack.pop()
        return items[::-1]

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind) or self._stack[-1] is _MARK:
            raise ValueError("a value is missing")
        return self._stack[-1]

    def _spend(self, values: object) -> None:
        """Count text that becomes bytes: plain data uses each text once, so the sum is at most the file size."""
        if isinstance(values, tuple):
            self._spare -= sum(len(value) for value in values if isinstance(value, str))
        if self._spare < 0:
            raise ValueError("one text stands for more bytes than the file has")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    # Only keys of these types: hashing a deeply nested tuple would overflow the stack.
    if len(items) % 2 or not all(isinstance(key, str | bytes | int) for key in items[::2]):
        raise ValueError("a key without a value, or one that is neither text nor a number")
    return dict(zip(items[::2], items[1::2], strict=True))


def _call(function: object, arguments: object) -> object:
    """The record that a call of a known name stands for; nothing is called."""
    name = function.name if isinstance(function, _Name) else None
    match arguments:
        case () if name in _EMPTY_BYTES:
            return b""
        case (code, *_) if name == _DTYPE and len(arguments) <= 3:
            text = code.decode("latin1") if isinstance(code, bytes) and len(code) < 8 else code
            if not isinstance(text, str) or not _NUMERIC.fullmatch(text):
                raise ValueError("an array whose values are not numbers")
            return _NumberType(text)
        case (str(text), "latin1") if name == _ENCODE:  # byte strings as Python 3 writes them for Python 2
            return text.encode("latin1")
        case (_Name(name=kind), _, _) if name in _RECONSTRUCT and kind == _NDARRAY:
            return _Unfilled()
        case (raw, _NumberType() as number_type, shape, ("C" | "F") as order) if name in _FROM_BUFFER:
            return _array(raw, number_type, shape, fortran=order == "F")
    raise ValueError("a call that plain data does not make")


def _set_state(record: object, state: object) -> object:
    """Apply a state to a record; returns the value that replaces the record."""
    match record, state:
        # Version, byte order, then three entries for records and sub-arrays, which numbers do not have, and flags.
        case _NumberType(), (_, ("<" | ">" | "=" | "|") as order, None, None, None, *_):
            record.order = order
            return record
        case _Unfilled(array=None), (_, shape, _NumberType() as number_type, int(fortran), raw):
            record.array = _array(raw, number_type, shape, fortran=bool(fortran))
            return record.array
    raise ValueError("a state where plain data has none")


def _array(raw: object, number_type: _NumberType, shape: object, *, fortran: bool) -> npt.NDArray[Any]:
    if isinstance(raw, str):  # bytes of Python 2
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray):
        raise ValueError("an array without bytes")
    # Exactly int: bool is a subclass of int. Large numbers must be refused before they are multiplied.
    if not isinstance(shape, tuple) or len(shape) > 8 or any(type(n) is not int or not 0 <= n < 2**48 for n in shape):
        raise ValueError("an array without a valid shape of at most eight axes")
    kind: np.dtype[Any] = np.dtype(number_type.code)
    if number_type.order in ("<", ">"):
        kind = kind.newbyteorder(">" if number_type.order == ">" else "<")
    if math.prod(shape) * kind.itemsize != len(raw):
        raise ValueError(f"{len(raw)} bytes for an array of shape {shape}")
    return np.frombuffer(raw, dtype=kind).reshape(shape, order="F" if fortran else "C")
