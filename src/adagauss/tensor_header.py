"""The header of a safetensors file: names and places of tensors, checked before any tensor is read."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adagauss.errors import CheckpointError

OPENING = b'{"__metadata__":{"digest":"'
UNSIGNED = b"0" * 64
PLACE = 8 + len(OPENING)
"""Position of the digest: at the start of the header, so that it can be filled in last."""
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}


class TruncatedError(ValueError):
    """A file that is shorter than its header claims."""


@dataclass(frozen=True)
class Entry:
    """One tensor: its bytes are ``start`` to ``stop`` after the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names in file order: wide types first, so that each tensor is aligned, then by name."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def header_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The length and the header, with zeros for the digest."""
    entries: dict[str, Any] = {}
    stop = 0
    for name in ordered(tensors):
        tensor = tensors[name]
        if tensor.dtype not in CODES or tensor.layout != torch.strided:
            raise CheckpointError(f"{name} is a tensor of {tensor.dtype} ({tensor.layout}), which cannot be saved")
        start, stop = stop, stop + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
    content = {"__metadata__": {"digest": UNSIGNED.decode(), **metadata}, **entries}
    header = json.dumps(content, separators=(",", ":")).encode("ascii")
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header


def parse_header(header: bytes, size: int) -> tuple[dict[str, str], list[Entry]]:
    """Metadata and tensors, which must cover exactly the ``size`` bytes after the header; otherwise a `ValueError`."""
    content = json.loads(header)
    metadata = {str(key): str(value) for key, value in content.pop("__metadata__", {}).items()}
    # An empty tensor may have the same position as the next one.
    entries = sorted((_entry(*item) for item in content.items()), key=lambda entry: (entry.start, entry.stop))
    end = 0
    for entry in entries:
        if entry.start != end:
            raise ValueError("its tensors are not contiguous")
        end = entry.stop
    if end > size:
        raise TruncatedError("it is truncated")
    if end < size:
        raise ValueError("it holds more than its tensors")
    return metadata, entries


def _entry(name: str, value: Mapping[str, Any]) -> Entry:
    dtype, shape, (start, stop) = DTYPES[value["dtype"]], value["shape"], value["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
        raise ValueError(f"{name} has an impossible size")
    if math.prod(max(length, 1) for length in shape) >= 2**48:  # an empty tensor may claim a huge size
        raise ValueError(f"{name} has an impossible size")
    if math.prod(shape) * dtype.itemsize != stop - start:
        raise ValueError(f"{name} does not fit its place")
    return Entry(name, dtype, tuple(shape), start, stop)
