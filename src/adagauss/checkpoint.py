"""Checkpoint files: tensors and facts in one safetensors file, with a digest over every byte; nothing is unpickled.

The file has the safetensors format but is written here, not by the safetensors library: the same content gives the same
bytes, tensors are written without a copy, and the digest has a place where it can be filled in last. The digest is the
SHA-256 of the whole file with zeros in that place. It detects damage; it does not prove who wrote the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adagauss.atomic import replace_atomically, write_atomically
from adagauss.data.regular import IrregularFileError, open_regular
from adagauss.errors import CheckpointError
from adagauss.tensor_header import OPENING, PLACE, UNSIGNED, Entry, TruncatedError, header_of, ordered, parse_header

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

__all__ = [
    "load_tensors",
    "noted_digest",
    "require_finite",
    "require_shapes",
    "save_json",
    "save_tensors",
    "write_atomically",
]

VERSION = 2
MAX_HEADER = 16 * 2**20
MOST_LISTS = 2**18
"""Lists and mappings in a header: each takes thirty times the memory of the two bytes that make it."""
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


def load_tensors(
    path: Path, kind: str, device: torch.device | str = "cpu", *, mapped: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load what `save_tensors` stored; a damaged file, or one of another format or version, is refused with the reason.

    Every byte is compared with the digest. With ``mapped`` the tensors are views of the file: processes share its
    pages, and changes stay in memory.
    """
    with _opened(path) as file:
        header, size = _header(file, path, kind)
        ours = header.startswith(OPENING, 8)
        try:
            if header.count(b"[") + header.count(b"{") > MOST_LISTS:
                raise ValueError("its header has more entries than a learner can have")
            metadata, entries = parse_header(header[8:], size)
            facts = json.loads(metadata["facts"]) if _is_current(metadata, kind) else None
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            if ours or isinstance(error, TruncatedError):
                raise _damaged(path, kind, error) from error
            raise CheckpointError(f"{path} is not a safetensors file: nothing in it is read or run") from error
        if not _is_current(metadata, kind):
            # The digest shows whether the file really has another kind or version, or is only damaged.
            if ours and _digest_of_rest(file, header) != _noted(header):
                raise _damaged(path, kind, "its digest does not fit")
            raise _foreign(path, kind, metadata)
        digest = hashlib.sha256(_unsigned(header))
        tensors = (_map if mapped else _read)(file, entries, digest)
        if not ours or digest.hexdigest().encode() != _noted(header):
            raise _damaged(path, kind, "its digest does not fit")
    if not isinstance(facts, dict):
        raise _damaged(path, kind, "it holds no facts")
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
            raise _damaged(path, kind, f"{name} holds boolean values that are neither true nor false")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, facts


def noted_digest(path: Path) -> str:
    """The digest that a file says it has: another content has another one. Only `load_tensors` compares the two."""
    with _opened(path) as file:
        header, _ = _header(file, path, "file")
    return _noted(header).decode("ascii", "replace")


def require_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse NaN or infinite numbers, which no valid learner contains."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"{path}: {bad} of {tensor.numel()} numbers of {name} are NaN or infinite, so nothing can be "
                "predicted from it: use a file that was saved earlier"
            )


def require_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int | None, ...]], path: Path) -> None:
    """Refuse content in which a tensor of ``shapes`` is missing or has another shape; None stands for any length."""
    for name, wanted in shapes.items():
        if name not in tensors:
            raise CheckpointError(f"{path} lacks {name}: it was saved by another release, or edited by hand")
        found = tuple(tensors[name].shape)
        fits = len(found) == len(wanted) and all(size in (None, is_) for size, is_ in zip(wanted, found, strict=True))
        if not fits:
            expected = tuple("any" if size is None else size for size in wanted)
            raise CheckpointError(f"{path}: {name} has shape {found} where {expected} is expected")


def save_json(path: Path, data: Any) -> None:
    """Store JSON-ready data atomically, in a form that people can read."""
    write_atomically(path, (json.dumps(data, indent=2) + "\n").encode("utf-8"))


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    try:
        file = open_regular(path)
    except IrregularFileError as error:
        raise CheckpointError(f"{path} cannot be read: it is {error.kind}, not a file") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    with file:
        try:
            yield file
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error


def _header(file: BufferedReader, path: Path, kind: str) -> tuple[bytes, int]:
    """The length and the header that follows it, and the number of bytes after them."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= min(MAX_HEADER, size - 8):
        raise CheckpointError(f"{path} is damaged, or not a file of adagauss: {_remedy(path, kind)}")
    return prefix + file.read(length), size - 8 - length


def _unsigned(header: bytes) -> bytes:
    """The header as it was when the digest was computed."""
    return header[:PLACE] + UNSIGNED + header[PLACE + len(UNSIGNED) :]


def _noted(header: bytes) -> bytes:
    return header[PLACE : PLACE + len(UNSIGNED)]


def _digest_of_rest(file: BufferedReader, header: bytes) -> bytes:
    digest = hashlib.sha256(_unsigned(header))
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest().encode()


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _read(file: BufferedReader, entries: list[Entry], digest: Hash) -> dict[str, Tensor]:
    """Read directly into the tensors: the hashed bytes are the used bytes, and there is no copy."""
    tensors = {}
    for entry in entries:
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        content = _bytes(tensor)
        for first in range(0, len(content), CHUNK):
            chunk = content[first : first + CHUNK]
            if file.readinto(chunk) != len(chunk):
                raise OSError(0, "it became shorter while it was read")
            digest.update(chunk)
        tensors[entry.name] = tensor
    return tensors


def _map(file: BufferedReader, entries: list[Entry], digest: Hash) -> dict[str, Tensor]:
    start = file.tell()
    whole = np.memmap(file, dtype=np.uint8, mode="c")
    tensors = {}
    for entry in entries:
        content = whole[start + entry.start : start + entry.stop]
        digest.update(content.data)
        flat = torch.from_numpy(content).view(entry.dtype) if len(content) else torch.empty(0, dtype=entry.dtype)
        tensors[entry.name] = flat.view(entry.shape)
    return tensors


def _is_current(metadata: Mapping[str, str], kind: str) -> bool:
    return metadata.get("format") == f"adagauss-{kind}" and metadata.get("version") == str(VERSION)


def _foreign(path: Path, kind: str, metadata: Mapping[str, str]) -> CheckpointError:
    if metadata.get("format") != f"adagauss-{kind}":
        return CheckpointError(f"{path} is not a saved adagauss {kind} (it says {metadata.get('format')!r})")
    version = metadata.get("version")
    if version == "1":
        return CheckpointError(
            f"{path} was written by adagauss 0.1 (file format 1), and this release reads format {VERSION}, whose files "
            "hold more and carry a digest: use adagauss 0.1 for it, or train and save again with this release"
        )
    return CheckpointError(
        f"{path} was written in file format {version}, this adagauss reads {VERSION}: use the release that wrote it"
    )


def _damaged(path: Path, kind: str, why: object) -> CheckpointError:
    return CheckpointError(f"{path} is damaged ({why}): {_remedy(path, kind)}")


def _remedy(path: Path, kind: str) -> str:
    if path.parent.parent.name == "tasks":
        return f"delete the folder {path.parent} and continue with --resume, which repeats that task"
    if kind == "snapshot":
        return "it only saves time and can be deleted"
    return "it cannot be repaired: use another copy of it, or train and save again"
