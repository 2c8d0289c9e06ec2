"""NumPy arrays from pickles: their descriptions are checked as plain data, and the arrays are built here.

A pickle may call NumPy with any arguments, and NumPy trusts them: a forged dtype makes it treat bytes as pointers. So a
pickle cannot call NumPy here. A name becomes a `Name`, a call becomes one of the records below, and only a record with
a numeric type and sizes that match its bytes becomes an array.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
