"""Read untrusted pickles as plain data: nothing is unpickled and no code runs.

Python's unpickler is not used: even with a list of allowed names, a pickle can call them with any arguments, reserve
gigabytes of memory from a file of a few bytes, and overflow the stack with keys that are nested a million times.

Binary pickles are read, protocols 2 to 5: the official CIFAR files, and copies that Python 3 wrote.
"""

from __future__ import annotations

import math
import pickletools
import re
import struct
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adagauss.errors import DataError
from adagauss.utils.files import open_regular

SHORT_TEXTS = 4096
"""Characters of names and type codes, which a pickle may use repeatedly."""
NUMERIC = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248])")
NAMES = {
    "__builtin__ bytes": "bytes",
    "builtins bytes": "bytes",
    "_codecs encode": "encode",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    **{f"numpy.{core}.multiarray _reconstruct": "reconstruct" for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": "frombuffer" for core in ("core", "_core")},
}
"""The only names that a pickle may refer to; they are never imported."""
VALUES = re.compile(r"BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BIN(STRING|BYTES|UNICODE)8?|BYTEARRAY8")
"""Opcodes whose argument is the value."""
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
MARK = object()


@dataclass
class Record:
    """The meaning of a name or a call: a name, the type of numbers, or an array that is not filled yet."""

    kind: str
    value: Any = None


class _ForbiddenNameError(Exception):
    """A pickle refers to something other than plain data."""


def read_plain_pickle(path: Path) -> Any:
    """Read a pickle of plain values and numeric arrays; byte strings of Python 2 become text, arrays are read-only."""
    try:
        with open_regular(path) as stream:
            return _PickleReader(stream.read()).value
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

    def __init__(self, content: bytes) -> None:
        self._spare = len(content) + SHORT_TEXTS
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        for opcode, argument, _ in pickletools.genops(BytesIO(content)):
            if opcode.name != "STOP":
                self._apply(opcode.name, argument)
        self.value = self._pop()

    def _apply(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                stack.append(MARK)
            case "EMPTY_LIST" | "EMPTY_DICT":
                stack.append([] if name == "EMPTY_LIST" else {})
            case "APPEND" | "APPENDS":
                items = [self._pop()] if name == "APPEND" else self._pop_to_mark()
                self._top(list).extend(items)
            case "TUPLE":
                stack.append(tuple(self._pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._pop_many(int(name[-1]))))
            case "SETITEM" | "SETITEMS":
                items = self._pop_many(2) if name == "SETITEM" else self._pop_to_mark()
                # Only keys of these types: hashing a deeply nested tuple would overflow the stack.
                if len(items) % 2 or not all(isinstance(key, str | bytes | int) for key in items[::2]):
                    raise ValueError("a key without a value, or one that is neither text nor a number")
                self._top(dict).update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._memo[len(self._memo) if argument is None else argument] = self._top(object)
            case "BINGET" | "LONG_BINGET":
                value = self._memo[argument]
                # An array is memoised while it is empty, and filled later.
                filled = isinstance(value, Record) and isinstance(value.value, np.ndarray)
                stack.append(value.value if filled else value)
            case "GLOBAL" | "STACK_GLOBAL":
                words = argument if name == "GLOBAL" else " ".join(self._pop_many(2))  # a TypeError without text
                if words not in NAMES:
                    raise _ForbiddenNameError(words[:200])
                stack.append(Record(NAMES[words]))
            case "REDUCE" | "BUILD":
                target, values = self._pop_many(2)
                if isinstance(values, tuple):  # plain data turns each text into bytes once: at most the file in all
                    self._spare -= sum(len(value) for value in values if isinstance(value, str))
                if self._spare < 0:
                    raise ValueError("one text stands for more bytes than the file has")
                stack.append(_call(target, values) if name == "REDUCE" else _set_state(target, values))
            case _ if name in CONSTANTS:
                stack.append(CONSTANTS[name])
            case _ if VALUES.fullmatch(name):
                stack.append(argument)
            case _:
                raise ValueError(f"opcode {name} is not one of plain data")

    def _pop(self) -> Any:
        self._top(object)
        return self._stack.pop()

    def _pop_many(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    def _pop_to_mark(self) -> list[Any]:
        items: list[Any] = []
        while not self._stack or self._stack[-1] is not MARK:
            items.append(self._pop())
        self._stack.pop()
        return items[::-1]

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind) or self._stack[-1] is MARK:
            raise ValueError("a value is missing")
        return self._stack[-1]


def _call(function: object, arguments: object) -> object:
    """Interpret a call of a known name; nothing is called."""
    match function, arguments:
        case Record("bytes"), ():
            return b""
        case Record("encode"), (str(content), "latin1"):  # byte strings as Python 3 writes them for Python 2
            return content.encode("latin1")
        case Record("dtype"), (code, *rest) if len(rest) <= 2:
            text = code.decode("latin1") if isinstance(code, bytes) and len(code) < 8 else code
            if not isinstance(text, str) or not NUMERIC.fullmatch(text):
                raise ValueError("an array whose values are not numbers")
            return Record("type", np.dtype(text))
        case Record("reconstruct"), (Record("ndarray"), _, _):
            return Record("array")
        case Record("frombuffer"), (raw, Record("type", np.dtype() as numbers), shape, ("C" | "F") as order):
            return _array(raw, numbers, shape, order)
    raise ValueError("a call that plain data does not make")


def _set_state(record: object, state: object) -> object:
    """Apply a state to a record; returns the value that replaces the record."""
    match record, state:
        # Version, byte order, then three entries for records and sub-arrays, which numbers do not have, and flags.
        case Record("type"), (_, ("<" | ">" | "=" | "|") as order, None, None, None, *_):
            record.value = record.value.newbyteorder(order)
            return record
        case Record("array", None), (_, shape, Record("type", np.dtype() as numbers), int(fortran), raw):
            record.value = _array(raw, numbers, shape, "F" if fortran else "C")
            return record.value
    raise ValueError("a state where plain data has none")


def _array(raw: object, numbers: np.dtype[Any], shape: object, order: str) -> npt.NDArray[Any]:
    if isinstance(raw, str):  # bytes of Python 2
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray):
        raise ValueError("an array without bytes")
    # Exactly int: bool is a subclass of int. Large numbers must be refused before they are multiplied.
    if not isinstance(shape, tuple) or len(shape) > 8 or any(type(n) is not int or not 0 <= n < 2**48 for n in shape):
        raise ValueError("an array without a valid shape of at most eight axes")
    if math.prod(shape) * numbers.itemsize != len(raw):
        raise ValueError(f"{len(raw)} bytes for an array of shape {shape}")
    return np.frombuffer(raw, dtype=numbers).reshape(shape, order="F" if order == "F" else "C")
