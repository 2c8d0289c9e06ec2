"""Checkpoint files: tensors and facts in one safetensors file, with a digest over every byte; nothing is unpickled.

The file has the safetensors format and is read by its library, but is written here: the same content gives the same
bytes, tensors are written without a copy, and the digest has a place where it can be filled in last. The digest is the
SHA-256 of the whole file with zeros in that place. It detects damage; it does not prove who wrote the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from adagauss.errors import CheckpointError
from adagauss.utils.files import IrregularFileError, open_regular, replace_atomically, write_atomically

VERSION = 2
MAX_HEADER = 16 * 2**20
MOST_LISTS = 2**18
"""Lists and mappings in a header: each takes thirty times the memory of the two bytes that make it."""
LARGEST_FLOAT = 1e30
LARGEST_COUNT = 2.0**53
"""Limits for the numbers in a learner: sums, products and counts of larger ones would overflow."""
CHUNK = 2**24


def save_tensors(
    path: Path, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, mode: int = 0o666
) -> None:
    """Store tensors, and JSON-ready facts in the header, as one file of the given kind.

    Equal content gives equal bytes: tensors are stored in a fixed order, facts in the order given.
    """
    metadata = {"format": f"adagauss-{kind}", "version": str(VERSION), "facts": json.dumps(facts)}
    header = header_of(tensors, metadata)
    if len(header) > MAX_HEADER:
        raise CheckpointError(f"{path} was not written: {len(header)} bytes of names and facts are too many")
    if _has_too_many_lists(header):
        raise CheckpointError(
            f"{path} was not written: names and facts contain more than {MOST_LISTS} brackets or tasks, which cannot "
            "be loaded. Use shorter class names or fewer tasks"
        )

    def write(file: BufferedWriter) -> None:
        digest = hashlib.sha256(header)
        file.write(header)
        for name in ordered(tensors):
            # One at a time: a tensor on another device, or not contiguous, is copied only while it is written.
            content = _bytes(tensors[name].detach().cpu().contiguous())
            for start in range(0, len(content), CHUNK):
                chunk = content[start : start + CHUNK]
                digest.update(chunk)
                file.write(chunk)
        file.seek(PLACE)
        file.write(digest.hexdigest().encode())

    replace_atomically(path, write, mode=mode)


def load_tensors(path: Path, kind: str, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load what `save_tensors` stored; a damaged file, or one of another kind or version, is refused with the reason.

    Every byte is compared with the digest.
    """
    with _opened(path) as file:
        header = _header(file, path, kind)
        content = header + file.read()
    try:
        if _has_too_many_lists(header):
            raise ValueError("its header has more entries than a learner can have")
        metadata = json.loads(header[8:])["__metadata__"]
        if (metadata["format"], metadata["version"]) != (f"adagauss-{kind}", str(VERSION)):
            raise CheckpointError(
                f"{path} is not a saved adagauss {kind} in file format {VERSION} (it says {metadata['format']!r} in "
                f"file format {metadata['version']}): use another file, or the release that wrote it"
            )
        facts = json.loads(metadata["facts"])
        if not isinstance(facts, dict):
            raise ValueError("it holds no facts")
        digest = hashlib.sha256(header[:PLACE] + UNSIGNED + header[PLACE + len(UNSIGNED) :])
        digest.update(memoryview(content)[len(header) :])
        if not header.startswith(OPENING, 8) or digest.hexdigest() != _digest_in(header):
            raise ValueError("its digest does not fit")
        tensors = safetensors.torch.load(content)
        for name, tensor in tensors.items():
            # An empty tensor may claim a huge size.
            if tensor.dtype not in CODES or max(tensor.shape, default=0) >= 2**48:
                raise ValueError(f"{name} has an impossible type or size")
            if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
                raise ValueError(f"{name} holds boolean values that are neither true nor false")
    except (ValueError, TypeError, AttributeError, LookupError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is damaged, or not a file of adagauss ({error}): {_remedy(path, kind)}"
        ) from error
    return {name: tensor.to(device) for name, tensor in tensors.items()}, facts


def _has_too_many_lists(header: bytes | bytearray) -> bool:
    return header.count(b"[") + header.count(b"{") > MOST_LISTS


def stored_digest(path: Path) -> str:
    """The digest that a file says it has: another content has another one. Only `load_tensors` compares the two."""
    with _opened(path) as file:
        return _digest_in(_header(file, path, "file"))


def require_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse NaN or infinite numbers, which no valid learner contains."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"{path}: {bad} of {tensor.numel()} numbers of {name} are NaN or infinite, so nothing can be "
                "predicted from it: use a file that was saved earlier"
            )


def require_bounded(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse finite numbers so large that computing or saving with them would fail."""
    for name, tensor in tensors.items():
        if not tensor.numel() or tensor.dtype in (torch.bool, torch.uint8) or tensor.is_complex():
            continue
        size = max(abs(float(value)) for value in torch.aminmax(tensor))
        limit = LARGEST_FLOAT if tensor.is_floating_point() else LARGEST_COUNT
        if limit < size < math.inf:
            raise CheckpointError(
                f"{path}: {name} contains {size:.3g}, and at most {limit:.3g} is possible: use a file saved earlier"
            )


def save_json(path: Path, data: Any) -> None:
    """Store JSON-ready data atomically, in a form that people can read."""
    write_atomically(path, (json.dumps(data, indent=2) + "\n").encode("utf-8"))


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    try:
        file = open_regular(path)
    except IrregularFileError:
        raise CheckpointError(f"{path} cannot be read: it is not a regular file") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    with file:
        try:
            yield file
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error


def _header(file: BufferedReader, path: Path, kind: str) -> bytes:
    """The length and the header that follows it."""
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= min(MAX_HEADER, os.fstat(file.fileno()).st_size - 8):
        raise CheckpointError(f"{path} is damaged, or not a file of adagauss: {_remedy(path, kind)}")
    return prefix + file.read(length)


def _digest_in(header: bytes) -> str:
    return header[PLACE : PLACE + len(UNSIGNED)].decode("ascii", "replace")


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _remedy(path: Path, kind: str) -> str:
    if path.parent.parent.name == "tasks":
        return f"delete the folder {path.parent} and continue with --resume, which repeats that task"
    if kind == "snapshot":
        return "it only saves time and can be deleted"
    return "it cannot be repaired: use another copy of it, or train and save again"


OPENING = b'{"__metadata__":{"digest":"'
UNSIGNED = b"0" * 64
PLACE = 8 + len(OPENING)
"""Position of the digest: at the start of the header, so that it can be filled in last."""
CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


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
