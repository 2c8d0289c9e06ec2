"""Read untrusted pickles as plain data: nothing is unpickled and no code runs.

Python's unpickler is not used: even with a list of allowed names, a pickle can call them with any arguments, reserve
gigabytes of memory from a file of a few bytes, and overflow the stack with keys that are nested a million times.
"""

from __future__ import annotations

import codecs
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
_EMPTY_BYTES = {("__builtin__", "bytes"), ("builtins", "bytes")}
_RECONSTRUCT = {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
_FROM_BUFFER = {(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")}
_NDARRAY, _DTYPE, _ENCODE = ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")
_KNOWN_NAMES = {_NDARRAY, _DTYPE, _ENCODE} | _EMPTY_BYTES | _RECONSTRUCT | _FROM_BUFFER
_FORBIDDEN = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID", "EXT1", "EXT2", "EXT4"}
"""Opcodes that create objects other than plain data."""
_VALUES = {
    "INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip
"""Opcodes whose argument is the value."""


class _ForbiddenNameError(Exception):
    """A pickle refers to something other than plain data."""


@dataclass(frozen=True)
class _Name:
    """A name that pickles of plain arrays refer to; it is never imported."""

    name: tuple[str, str]


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
        data = self._stream.read(count)
        if len(data) != count:
            raise ValueError("it ends too soon")
        return data

    def readline(self) -> bytes:
        """Read a line with its end."""
        data = self._stream.readline()
        self._left -= len(data)
        if not data.endswith(b"\n"):
            raise ValueError("it ends too soon")
        return data


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle of plain values and numeric arrays; byte strings of Python 2 become text, arrays are read-only."""
    try:
        with open_regular(path) as stream:
            return _PickleReader(_BoundedStream(stream)).load()
    except _ForbiddenNameError as error:
        raise DataError(
            f"{path} asks to load {error}, which plain data never needs: it may be malicious and was refused"
        ) from None
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
            if name in _FORBIDDEN:
                raise _ForbiddenNameError(f"an object ({name})")
            argument = read_argument(self._stream)
            if name in _VALUES:
                self._stack.append(argument)
            elif name in _OPERATIONS:
                _OPERATIONS[name](self, argument)
            else:
                raise ValueError(f"opcode {name} is not one of plain data")
        return self.pop()

    def push(self, value: object) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("a value is missing")
        return self._stack.pop()

    def pop_to_mark(self) -> list[Any]:
        stack = self._stack
        start = len(stack) - 1
        while start >= 0 and stack[start] is not _MARK:
            start -= 1
        if start < 0:
            raise ValueError("a mark is missing")
        items = stack[start + 1 :]
        del stack[start:]
        return items

    def pop_tuple(self, count: int) -> tuple[Any, ...]:
        return tuple([self.pop() for _ in range(count)][::-1])

    def top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind) or self._stack[-1] is _MARK:
            raise ValueError("a value is missing")
        return self._stack[-1]

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        self.top(dict).update(_pairs(items))

    def put(self, place: int | None) -> None:
        self._memo[len(self._memo) if place is None else place] = self.top(object)

    def get(self, place: int) -> None:
        value = self._memo[place]
        # An array is memoised while it is empty, and filled later.
        self.push(value.array if isinstance(value, _Unfilled) and value.array is not None else value)

    def push_name(self, module: object, attribute: object) -> None:
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise ValueError("a name that is not text")
        if (module, attribute) not in _KNOWN_NAMES:
            raise _ForbiddenNameError(f"{module[:100]}.{attribute[:100]}")
        self.push(_Name((module, attribute)))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        self._spend(arguments)
        self.push(_call(function, arguments))

    def build(self) -> None:
        state, record = self.pop(), self.pop()
        self._spend(state)
        self.push(_set_state(record, state))

    def _spend(self, values: object) -> None:
        """Count text that becomes bytes: plain data uses each text once, so the sum is at most the file size."""
        if isinstance(values, tuple):
            self._spare -= sum(len(value) for value in values if isinstance(value, str))
        if self._spare < 0:
            raise ValueError("one text stands for more bytes than the file has")


def _quoted(stream: Any) -> str:
    """The argument of STRING; unlike `pickletools`, any byte is allowed, as in arrays of Python 2."""
    line = stream.readline().strip()
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise ValueError("text without quotation marks")
    return codecs.escape_decode(line[1:-1])[0].decode("latin1")


def _decimal(stream: Any) -> int | bool:
    """The argument of INT; unlike `pickletools`, a trailing L is allowed, as in Python 2."""
    line = stream.readline()[:-1]
    return line == b"01" if line in (b"00", b"01") else int(line.decode("ascii").removesuffix("L"))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    # Only keys of these types: hashing a deeply nested tuple would overflow the stack.
    if len(items) % 2 or not all(isinstance(key, str | bytes | int) for key in items[::2]):
        raise ValueError("a key without a value, or one that is neither text nor a number")
    return dict(zip(items[::2], items[1::2], strict=True))


_OPCODES: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    op.code.encode("latin1"): (op.name, op.arg.reader if op.arg is not None else lambda _: None)
    for op in pickletools.opcodes
} | {b"S": ("STRING", _quoted), b"I": ("INT", _decimal)}

_OPERATIONS: dict[str, Callable[[_PickleReader, Any], object]] = {
    "PROTO": lambda reader, _: None,
    "FRAME": lambda reader, _: None,
    "MARK": lambda reader, _: reader.push(_MARK),
    "NONE": lambda reader, _: reader.push(None),
    "NEWTRUE": lambda reader, _: reader.push(True),
    "NEWFALSE": lambda reader, _: reader.push(False),
    "EMPTY_LIST": lambda reader, _: reader.push([]),
    "LIST": lambda reader, _: reader.push(reader.pop_to_mark()),
    "APPEND": lambda reader, _: reader.extend([reader.pop()]),
    "APPENDS": lambda reader, _: reader.extend(reader.pop_to_mark()),
    "EMPTY_TUPLE": lambda reader, _: reader.push(()),
    "TUPLE": lambda reader, _: reader.push(tuple(reader.pop_to_mark())),
    "TUPLE1": lambda reader, _: reader.push(reader.pop_tuple(1)),
    "TUPLE2": lambda reader, _: reader.push(reader.pop_tuple(2)),
    "TUPLE3": lambda reader, _: reader.push(reader.pop_tuple(3)),
    "EMPTY_DICT": lambda reader, _: reader.push({}),
    "DICT": lambda reader, _: reader.push(_pairs(reader.pop_to_mark())),
    "SETITEM": lambda reader, _: reader.set_items(list(reader.pop_tuple(2))),
    "SETITEMS": lambda reader, _: reader.set_items(reader.pop_to_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda reader, place: reader.put(place)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda reader, place: reader.get(place)),
    "GLOBAL": lambda reader, names: reader.push_name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda reader, _: reader.push_name(*reader.pop_tuple(2)),
    "REDUCE": lambda reader, _: reader.reduce(),
    "BUILD": lambda reader, _: reader.build(),
}


def _call(function: object, arguments: object) -> object:
    """The record that a call of a known name stands for; nothing is called."""
    if not isinstance(arguments, tuple) or not isinstance(function, _Name):
        raise ValueError("a call that plain data does not make")
    name, count = function.name, len(arguments)
    if name == _DTYPE and count in (1, 2, 3):
        return _NumberType(_numeric_code(arguments[0]))
    if name in _EMPTY_BYTES and count == 0:
        return b""
    if name == _ENCODE and count == 2:  # byte strings as Python 3 writes them for Python 2
        text, encoding = arguments
        if not isinstance(text, str) or not isinstance(encoding, str) or encoding != "latin1":
            raise ValueError("text in another encoding than latin1")
        return text.encode("latin1")
    if name in _RECONSTRUCT and count == 3 and arguments[0] == _Name(_NDARRAY):
        return _Unfilled()
    if name in _FROM_BUFFER and count == 4:
        raw, number_type, shape, order = arguments
        if not isinstance(order, str) or order not in ("C", "F"):
            raise ValueError("an array of unknown layout")
        return _array(raw, number_type, shape, fortran=order == "F")
    raise ValueError("a call that plain data does not make")


def _set_state(record: object, state: object) -> object:
    """Apply a state to a record; returns the value that replaces the record."""
    if not isinstance(state, tuple):
        raise ValueError("a state that is not a tuple")
    if isinstance(record, _NumberType):
        # Version, byte order, then three entries for records and sub-arrays, which numbers do not have, and flags.
        if len(state) < 5 or not isinstance(state[1], str) or state[1] not in ("<", ">", "=", "|"):
            raise ValueError("a type without a byte order")
        if any(entry is not None for entry in state[2:5]):
            raise ValueError("a type that is not a plain number")
        record.order = state[1]
        return record
    if isinstance(record, _Unfilled) and record.array is None and len(state) == 5:
        _, shape, number_type, fortran, raw = state
        if not isinstance(fortran, int):
            raise ValueError("an array of unknown layout")
        record.array = _array(raw, number_type, shape, fortran=bool(fortran))
        return record.array
    raise ValueError("a state where plain data has none")


def _numeric_code(code: object) -> str:
    text = code.decode("latin1") if isinstance(code, bytes) and len(code) < 8 else code
    if not isinstance(text, str) or not _NUMERIC.fullmatch(text):
        raise ValueError("an array whose values are not numbers")
    return text


def _array(raw: object, number_type: object, shape: object, *, fortran: bool) -> npt.NDArray[Any]:
    if isinstance(raw, str):  # bytes of Python 2
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray) or not isinstance(number_type, _NumberType):
        raise ValueError("an array without bytes or type")
    # Exactly int: bool is a subclass of int. Large numbers must be refused before they are multiplied.
    if not isinstance(shape, tuple) or len(shape) > 8 or any(type(n) is not int or not 0 <= n < 2**48 for n in shape):
        raise ValueError("an array without a valid shape of at most eight axes")
    kind: np.dtype[Any] = np.dtype(number_type.code)
    if number_type.order in ("<", ">"):
        kind = kind.newbyteorder(">" if number_type.order == ">" else "<")
    if math.prod(shape) * kind.itemsize != len(raw):
        raise ValueError(f"{len(raw)} bytes for an array of shape {shape}")
    return np.frombuffer(raw, dtype=kind).reshape(shape, order="F" if fortran else "C")
