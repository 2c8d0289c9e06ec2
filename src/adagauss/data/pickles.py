"""Read untrusted pickles without running code: NumPy arrays and plain values only.

This is our own reader for the part of the pickle language that describes plain data. Python's unpickler is not used:
even with a list of allowed names, a pickle can call them with any arguments, reserve gigabytes of memory from a file of
a few bytes, and overflow the stack with keys that are nested a million times.
"""

from __future__ import annotations

import codecs
import math
import os
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from adagauss.errors import DataError
from adagauss.utils.files import open_regular

_MARK = object()
SHORT = 4096
"""Letters of names and codes, which may be used again and again."""
_NEVER = {
    b"i": "INST",
    b"o": "OBJ",
    b"\x81": "NEWOBJ",
    b"\x92": "NEWOBJ_EX",
    b"P": "PERSID",
    b"Q": "BINPERSID",
    b"\x82": "EXT1",
    b"\x83": "EXT2",
    b"\x84": "EXT4",
}
"""Opcodes that make objects other than plain data."""


def read_plain_pickle(path: Path) -> Any:
    """The content of a pickle of plain data; byte strings of Python 2 become text, arrays are read-only."""
    try:
        with open_regular(path) as stream:
            return _Reader(stream).load()
    except ForbiddenNameError as error:
        raise DataError(
            f"{path} asks to load {error}, which plain data never needs: it may be malicious and was refused"
        ) from None
    except DataError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, struct.error, MemoryError) as error:
        raise DataError(f"{path} cannot be read; it is damaged or only partly extracted ({error})") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from error


class _Reader:
    """The stack machine of pickles, with the opcodes of plain data and no others."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = os.fstat(stream.fileno()).st_size
        self._spare = self._left + SHORT
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        operations = _OPERATIONS
        while (code := self.read(1)) != b".":
            operation = operations.get(code)
            if operation is None:
                if code in _NEVER:
                    raise ForbiddenNameError(f"an object ({_NEVER[code]})")
                raise ValueError(f"opcode {code!r} is not one of plain data")
            operation(self)
        return self.pop()

    def read(self, count: int) -> bytes:
        # The length is checked against the remaining bytes before memory is reserved.
        if not 0 <= count <= self._left:
            raise ValueError("it ends too soon")
        self._left -= count
        data = self._stream.read(count)
        if len(data) != count:
            raise ValueError("it ends too soon")
        return data

    def line(self) -> bytes:
        data = self._stream.readline()
        self._left -= len(data)
        if not data.endswith(b"\n"):
            raise ValueError("it ends too soon")
        return data[:-1]

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.read(struct.calcsize(form)))[0]
        return value

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

    def top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise ValueError(f"a {kind.__name__} is missing")
        return self._stack[-1]

    def put(self, place: int) -> None:
        if not self._stack or self._stack[-1] is _MARK:
            raise ValueError("a value is missing")
        self._memo[place] = self._stack[-1]

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get(self, place: int) -> None:
        value = self._memo[place]
        # It was put into the memo while it was empty, and has been filled since.
        self.push(value.array if isinstance(value, Unfilled) and value.array is not None else value)

    def append(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        self.top(dict).update(_pairs(items))

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(items)))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        self.spend(arguments)
        self.push(call(function, arguments))

    def build(self) -> None:
        state, record = self.pop(), self.pop()
        self.spend(state)
        self.push(give_state(record, state))

    def spend(self, values: object) -> None:
        """Count texts that become bytes: plain data uses each of them once, so all together fit into the file."""
        if isinstance(values, tuple):
            self._spare -= sum(len(value) for value in values if isinstance(value, str))
        if self._spare < 0:
            raise ValueError("one text stands for more bytes than the file has")

    def stack_global(self) -> None:
        attribute, module = self.pop(), self.pop()
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise ValueError("a name that is not text")
        self.push(name(module, attribute))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise ValueError("a key without a value")
    keys = items[::2]
    # Only these types: hashing a deeply nested tuple would overflow the stack.
    if not all(isinstance(key, str | bytes | int) for key in keys):
        raise ValueError("a key that is neither text nor a number")
    return dict(zip(keys, items[1::2], strict=True))


def _decimal(line: bytes) -> int | bool:
    if line in (b"00", b"01"):  # how the oldest protocol writes booleans
        return line == b"01"
    return int(line.decode("ascii").removesuffix("L"))


def _quoted(line: bytes) -> str:
    line = line.strip()
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
        raise ValueError("text without quotation marks")
    return codecs.escape_decode(line[1:-1])[0].decode("latin1")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


_OPERATIONS: dict[bytes, Callable[[_Reader], object]] = {
    b"\x80": lambda r: r.read(1),  # PROTO
    b"\x95": lambda r: r.read(8),  # FRAME
    b"(": lambda r: r.push(_MARK),
    b"N": lambda r: r.push(None),
    b"\x88": lambda r: r.push(True),
    b"\x89": lambda r: r.push(False),
    b"I": lambda r: r.push(_decimal(r.line())),
    b"L": lambda r: r.push(_decimal(r.line())),
    b"J": lambda r: r.push(r.number("<i")),
    b"K": lambda r: r.push(r.number("<B")),
    b"M": lambda r: r.push(r.number("<H")),
    b"\x8a": lambda r: r.push(int.from_bytes(r.read(r.number("<B")), "little", signed=True)),
    b"F": lambda r: r.push(float(r.line())),
    b"G": lambda r: r.push(struct.unpack(">d", r.read(8))[0]),
    b"S": lambda r: r.push(_quoted(r.line())),
    b"T": lambda r: r.push(r.read(r.number("<i")).decode("latin1")),
    b"U": lambda r: r.push(r.read(r.number("<B")).decode("latin1")),
    b"B": lambda r: r.push(r.read(r.number("<I"))),
    b"C": lambda r: r.push(r.read(r.number("<B"))),
    b"\x8e": lambda r: r.push(r.read(r.number("<Q"))),
    b"\x96": lambda r: r.push(r.read(r.number("<Q"))),  # BYTEARRAY8
    b"V": lambda r: r.push(r.line().decode("raw-unicode-escape")),
    b"X": lambda r: r.push(_text(r.read(r.number("<I")))),
    b"\x8c": lambda r: r.push(_text(r.read(r.number("<B")))),
    b"\x8d": lambda r: r.push(_text(r.read(r.number("<Q")))),
    b"]": lambda r: r.push([]),
    b"l": lambda r: r.push(r.pop_to_mark()),
    b"a": lambda r: r.append([r.pop()]),
    b"e": lambda r: r.append(r.pop_to_mark()),
    b")": lambda r: r.push(()),
    b"t": lambda r: r.push(tuple(r.pop_to_mark())),
    b"\x85": lambda r: r.tuple_of(1),
    b"\x86": lambda r: r.tuple_of(2),
    b"\x87": lambda r: r.tuple_of(3),
    b"}": lambda r: r.push({}),
    b"d": lambda r: r.push(_pairs(r.pop_to_mark())),
    b"s": lambda r: r.set_items([r.pop(), r.pop()][::-1]),
    b"u": lambda r: r.set_items(r.pop_to_mark()),
    b"p": lambda r: r.put(int(r.line())),
    b"q": lambda r: r.put(r.number("<B")),
    b"r": lambda r: r.put(r.number("<I")),
    b"\x94": lambda r: r.memoize(),
    b"g": lambda r: r.get(int(r.line())),
    b"h": lambda r: r.get(r.number("<B")),
    b"j": lambda r: r.get(r.number("<I")),
    b"c": lambda r: r.push(name(r.line().decode("utf-8"), r.line().decode("utf-8"))),
    b"\x93": lambda r: r.stack_global(),
    b"R": lambda r: r.reduce(),
    b"b": lambda r: r.build(),
}


NUMERIC = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
ORDERS = frozenset("<>=|")


class ForbiddenNameError(Exception):
    """A pickle refers to something other than plain data."""


@dataclass(frozen=True)
class Name:
    """One of the names that pickles of plain arrays refer to; it is never imported."""

    module: str
    name: str


@dataclass
class NumberType:
    """An incomplete dtype: its code, and the byte order that its state sets later."""

    code: str
    order: str = "="


@dataclass
class Unfilled:
    """An incomplete array: empty until its state is set."""

    array: npt.NDArray[Any] | None = None


NDARRAY, DTYPE, ENCODE = Name("numpy", "ndarray"), Name("numpy", "dtype"), Name("_codecs", "encode")
RECONSTRUCT = {Name(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
FROM_BUFFER = {Name(f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")}
NO_BYTES = {Name(module, "bytes") for module in ("__builtin__", "builtins")}
"""Called without arguments for an empty byte string."""
KNOWN = {NDARRAY, DTYPE, ENCODE} | NO_BYTES | RECONSTRUCT | FROM_BUFFER


def name(module: str, attribute: str) -> Name:
    """The name, if pickles of plain arrays use it."""
    for known in KNOWN:
        if (known.module, known.name) == (module, attribute):
            return known
    raise ForbiddenNameError(f"{module[:100]}.{attribute[:100]}")


def call(function: object, arguments: object) -> object:
    """The record that a call of a known name stands for."""
    if not isinstance(arguments, tuple) or not isinstance(function, Name):
        raise ValueError("a call that plain data does not make")
    if function == DTYPE and len(arguments) in (1, 2, 3):
        return NumberType(_numeric(arguments[0]))
    if function in NO_BYTES and arguments == ():
        return b""
    if function == ENCODE and len(arguments) == 2:
        return _latin1(*arguments)
    if function in RECONSTRUCT and len(arguments) == 3 and arguments[0] is NDARRAY:
        return Unfilled()
    if function in FROM_BUFFER and len(arguments) == 4:
        raw, number_type, shape, order = arguments
        if not isinstance(order, str) or order not in ("C", "F"):
            raise ValueError("an array of unknown layout")
        return _array(raw, number_type, shape, fortran=order == "F")
    raise ValueError("a call that plain data does not make")


def give_state(record: object, state: object) -> object:
    """Apply the state that the pickle gives for a record; returns the value that replaces the record."""
    if not isinstance(state, tuple):
        raise ValueError("a state that is not a tuple")
    if isinstance(record, NumberType):
        # Version, byte order, then five entries for records and sub-arrays, which numbers do not have, and flags.
        if len(state) < 5 or not isinstance(state[1], str) or state[1] not in ORDERS:
            raise ValueError("a type without a byte order")
        if any(entry is not None for entry in state[2:5]):
            raise ValueError("a type that is not a plain number")
        record.order = state[1]
        return record
    if isinstance(record, Unfilled) and record.array is None and len(state) == 5:
        _, shape, number_type, fortran, raw = state
        if not isinstance(fortran, int):
            raise ValueError("an array of unknown layout")
        record.array = _array(raw, number_type, shape, fortran=bool(fortran))
        return record.array
    raise ValueError("a state where plain data has none")


def _numeric(code: object) -> str:
    text = code.decode("latin1") if isinstance(code, bytes) and len(code) < 8 else code
    if not isinstance(text, str) or not NUMERIC.fullmatch(text):
        raise ValueError("an array whose values are not numbers")
    return text


def _latin1(text: object, encoding: object) -> bytes:
    """Byte strings as Python 3 writes them for Python 2."""
    if not isinstance(text, str) or not isinstance(encoding, str) or encoding != "latin1":
        raise ValueError("text in another encoding than latin1")
    return text.encode("latin1")


def _array(raw: object, number_type: object, shape: object, *, fortran: bool) -> npt.NDArray[Any]:
    if isinstance(raw, str):  # bytes of Python 2
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray) or not isinstance(number_type, NumberType):
        raise ValueError("an array without bytes or type")
    sizes = _sizes(shape)
    kind: np.dtype[Any] = np.dtype(number_type.code)
    if number_type.order in ("<", ">"):
        kind = kind.newbyteorder(">" if number_type.order == ">" else "<")
    if math.prod(sizes) * kind.itemsize != len(raw):
        raise ValueError(f"{len(raw)} bytes for an array of shape {sizes}")
    return np.frombuffer(raw, dtype=kind).reshape(sizes, order="F" if fortran else "C")


def _sizes(shape: object) -> Sequence[int]:
    if not isinstance(shape, tuple) or len(shape) > 8:
        raise ValueError("an array without a shape of at most eight axes")
    # Exactly int: bool is a subclass of int. Large numbers must be refused before they are multiplied.
    if any(type(size) is not int or not 0 <= size < 2**48 for size in shape):
        raise ValueError("an array with an impossible axis")
    return shape
