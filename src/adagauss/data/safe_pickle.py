"""Pickles from elsewhere, read so that they cannot run code: numpy arrays and plain values only."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from adagauss.errors import DataError


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"byte strings in pickles are written as latin1, not {encoding!r}")
    return text.encode("latin1")


_OLD_REBUILD = np.zeros(1).__reduce_ex__(2)[0]
_NEW_REBUILD = np.zeros(1).__reduce_ex__(5)[0]

# Everything a pickle of arrays, strings, numbers, lists and dictionaries may refer to. Names are looked up
# here and nowhere else, so nothing is ever imported at a pickle's request.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _OLD_REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _OLD_REBUILD,
    ("numpy.core.numeric", "_frombuffer"): _NEW_REBUILD,
    ("numpy._core.numeric", "_frombuffer"): _NEW_REBUILD,
    ("_codecs", "encode"): _encode_latin1,  # how Python 3 writes byte strings that Python 2 can read
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _ForbiddenNameError(f"{module}.{name}") from None


class _ForbiddenNameError(Exception):
    """A pickle asked for something other than plain data."""


def load_plain_pickle(path: Path) -> Any:
    """The content of a pickle of plain data; byte strings of Python 2 become text."""
    try:
        with path.open("rb") as stream:
            return _PlainUnpickler(stream, encoding="latin1").load()
    except _ForbiddenNameError as error:
        raise DataError(
            f"{path} asks to load {error}, which plain data never does: it may be malicious and was refused"
        ) from None
    except Exception as error:  # a damaged pickle fails in any way at all
        raise DataError(f"{path} cannot be read; it is damaged or extracted only in part ({error})") from error
