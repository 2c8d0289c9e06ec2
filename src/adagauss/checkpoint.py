"""Files that survive: tensors and facts in one safetensors file, replaced atomically, never unpickled."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adagauss.errors import CheckpointError

VERSION = 1
MAX_HEADER = 100 * 2**20
REMEDY = "if it is part of a run, delete it, and --resume goes on from what was saved before it"


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target and rename: after a crash or on a full disk the old file is still there, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if temporary.parent.is_dir():
            temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path} could not be written ({error.strerror or error}); what was there before is unchanged. "
            "Free some space or choose another folder, then resume."
        ) from error


def save_tensors(path: Path, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Store tensors, and JSON-ready facts in the header, as one file of the given kind."""
    from safetensors.torch import save

    metadata = {"format": f"adagauss-{kind}", "version": str(VERSION), "facts": json.dumps(facts)}
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, save(plain, metadata=metadata))


def load_tensors(path: Path, kind: str, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` stored; a file that is damaged, foreign or of another version is refused with the reason."""
    from safetensors.torch import load

    metadata = _metadata(path)
    if metadata.get("format") != f"adagauss-{kind}":
        raise CheckpointError(f"{path} is not a saved adagauss {kind} (it says {metadata.get('format')!r})")
    if metadata.get("version") != str(VERSION):
        raise CheckpointError(
            f"{path} was written in format version {metadata.get('version')}, this adagauss reads {VERSION}: "
            "use the release that wrote it, or save it anew"
        )
    try:
        tensors = load(path.read_bytes())
        facts = json.loads(metadata["facts"])
    except Exception as error:  # the safetensors library has exceptions of its own for a damaged body
        raise CheckpointError(f"{path} is damaged ({error}): {REMEDY}") from error
    return {name: tensor.to(device) for name, tensor in tensors.items()}, facts


def _metadata(path: Path) -> dict[str, str]:
    """The header's metadata, read with the file's size in hand, so that a truncated or foreign file is recognised."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise CheckpointError(f"{path} is truncated, or not a saved learner or run: {REMEDY}")
            header = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        stop = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        facts = {str(key): str(value) for key, value in metadata.items()}
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: nothing in it is read or run") from error
    if stop > size - 8 - length:
        raise CheckpointError(f"{path} is truncated: {REMEDY}")
    return facts


def save_json(path: Path, data: Any) -> None:
    """Store JSON-ready data atomically, for people to read as well."""
    write_atomically(path, (json.dumps(data, indent=2) + "\n").encode())
