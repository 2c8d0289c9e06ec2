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
import re
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from adagauss.errors import CheckpointError
from adagauss.utils.files import (
    IrregularFileError,
    open_regular,
    real_path,
    remove_durably,
    replace_atomically,
    write_atomically,
)

if TYPE_CHECKING:  # commands read facts before they import torch, which takes seconds
    import torch
    from torch import Tensor

VERSION = 2
MAX_HEADER = 16 * 2**20
MAX_LISTS = 2**18
"""Limit for the lists and mappings in a header: each takes thirty times the memory of its two bytes."""
MAX_FLOAT = 1e30
MAX_COUNT = 2.0**53
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
            f"{path} was not written: names and facts contain more than {MAX_LISTS} brackets or tasks, which cannot "
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
    import safetensors.torch
    import torch

    with _opened(path) as file:
        header = _header(file, path, kind)
        file.seek(0)
        content = file.read()
    with _damage_named(path, kind):
        facts = _facts(header, path, kind)
        digest = hashlib.sha256(header[:PLACE] + UNSIGNED + header[PLACE + len(UNSIGNED) :])
        digest.update(memoryview(content)[len(header) :])
        if not header.startswith(OPENING, 8) or digest.hexdigest() != _digest_in(header):
            raise ValueError("its digest does not fit")
        tensors = safetensors.torch.load(content)
        for name, tensor in tensors.items():
            # An empty tensor may claim a huge size.
            if _type_name(tensor) not in CODES or max(tensor.shape, default=0) >= 2**48:
                raise ValueError(f"{name} has an impossible type or size")
            if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
                raise ValueError(f"{name} holds boolean values that are neither true nor false")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, facts


def stored_facts(path: Path, kind: str) -> dict[str, Any]:
    """Read the facts of a file from its header alone: without torch, and without comparing the digest."""
    with _opened(path) as file, _damage_named(path, kind):
        return _facts(_header(file, path, kind), path, kind)


def _facts(header: bytes, path: Path, kind: str) -> dict[str, Any]:
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
    return facts


@contextmanager
def _damage_named(path: Path, kind: str) -> Iterator[None]:
    """Turn the errors of readers into one that names the file and what to do."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} is damaged, or not a file of adagauss ({error}): {_remedy(path, kind)}"
        ) from error


def _has_too_many_lists(header: bytes | bytearray) -> bool:
    return header.count(b"[") + header.count(b"{") > MAX_LISTS


def stored_digest(path: Path) -> str:
    """Read the digest that a file states. Only `load_tensors` compares it with the content."""
    with _opened(path) as file:
        return _digest_in(_header(file, path, "file"))


BACKUP = r"\.{}\.before-([0-9a-f]{{16}}|next)"
"""Name of a backup: of the file, and the start of the digest of the version that replaced it."""


def backup_of(path: Path) -> Path | None:
    """Find the backup of the previous version; None if there is none, or if another program changed the file."""
    target = real_path(path)
    backup = target.with_name(f".{target.name}.before-{stored_digest(target)[:16]}")
    return backup if backup.is_file() else None


def remove_backups(path: Path, but: Path | None = None) -> None:
    """Remove all backups of a file, or all but one."""
    target = real_path(path)
    name = re.compile(BACKUP.format(re.escape(target.name)), re.DOTALL)
    found = (file for file in target.parent.iterdir() if name.fullmatch(file.name))
    remove_durably(target.parent, [file for file in found if file != but])


@contextmanager
def backed_up(path: Path, keep: bool = True) -> Iterator[Callable[[], None]]:
    """Keep the current version of a file as a backup of the versions that replace it.

    Yields a function to call after each replacement: it names the backup after the new version, and removes all other
    backups. A backup is a second name of the old file, so that it takes no time to make; a copy where the file system
    has no such names. Without ``keep``, the function only removes backups.
    """
    target = real_path(path)
    waiting = target.with_name(f".{target.name}.before-next")
    kept = _kept_version(target, waiting) if keep and target.exists() else None

    def replaced() -> None:
        nonlocal kept
        try:
            if kept is not None:
                kept = kept.replace(target.with_name(f".{target.name}.before-{stored_digest(target)[:16]}"))
            remove_backups(path, but=kept)
        except OSError as error:
            raise CheckpointError(
                f"{path} was replaced, but older versions of it could not be renamed or removed ({error.strerror}): "
                f"delete the files {target.parent}/.{target.name}.before-* if you do not need them"
            ) from error

    try:
        yield replaced
    finally:
        with suppress(OSError):  # the next change removes it
            waiting.unlink(missing_ok=True)


def _kept_version(target: Path, name: Path) -> Path | None:
    """Give a file a second name, or copy it; a warning if neither is possible."""
    try:
        name.unlink(missing_ok=True)
        try:
            name.hardlink_to(target)
        except OSError:
            with open_regular(target) as file:
                replace_atomically(name, lambda copy: shutil.copyfileobj(file, copy), mode=0o600)
    except (CheckpointError, OSError) as error:
        warnings.warn(f"{target} has no backup, so the change cannot be undone: {error}", stacklevel=2)
        return None
    return name


def require_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse NaN or infinite numbers, which no valid learner contains."""
    import torch

    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"{path}: {bad} of {tensor.numel()} numbers of {name} are NaN or infinite, so nothing can be "
                "predicted from it: use a file that was saved earlier"
            )


def require_bounded(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse finite numbers so large that computing or saving with them would fail."""
    import torch

    for name, tensor in tensors.items():
        if not tensor.numel() or tensor.dtype in (torch.bool, torch.uint8) or tensor.is_complex():
            continue
        size = max(abs(float(value)) for value in torch.aminmax(tensor))
        limit = MAX_FLOAT if tensor.is_floating_point() else MAX_COUNT
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
        with open_regular(path) as file:
            yield file
    except IrregularFileError:
        raise CheckpointError(f"{path} cannot be read: it is not a regular file") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error


def _header(file: BufferedReader, path: Path, kind: str) -> bytes:
    """Read the length and the header that follows it."""
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= min(MAX_HEADER, os.fstat(file.fileno()).st_size - 8):
        raise CheckpointError(f"{path} is damaged, or not a file of adagauss: {_remedy(path, kind)}")
    return prefix + file.read(length)


def _digest_in(header: bytes) -> str:
    return header[PLACE : PLACE + len(UNSIGNED)].decode("ascii", "replace")


def _bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    import torch

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
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def _type_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def ordered(tensors: Mapping[str, Tensor]) -> list[str]:
    """Sort names in file order: wide types first, so that each tensor is aligned, then by name."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def header_of(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Build the length and the header, with zeros for the digest."""
    entries: dict[str, Any] = {}
    stop = 0
    for name in ordered(tensors):
        tensor = tensors[name]
        if _type_name(tensor) not in CODES or str(tensor.layout) != "torch.strided":
            raise CheckpointError(f"{name} is a tensor of {tensor.dtype} ({tensor.layout}), which cannot be saved")
        start, stop = stop, stop + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": CODES[_type_name(tensor)], "shape": list(tensor.shape), "data_offsets": [start, stop]}
    content = {"__metadata__": {"digest": UNSIGNED.decode(), **metadata}, **entries}
    header = json.dumps(content, separators=(",", ":")).encode("ascii")
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header
