"""Parquet files of Hugging Face image datasets, and arrays of pixels in npz files."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adagauss.data.images import to_uint8_nchw
from adagauss.data.inputs import OPAQUE
from adagauss.errors import DataError
from adagauss.shards.example import MOST_BYTES, Example, ShardError, plain_label
from adagauss.shards.tars import Bad
from adagauss.utils.files import open_regular
from adagauss.utils.registry import import_extra

_UNREADABLE = (
    DataError,
    KeyError,
    TypeError,
    OSError,
    ValueError,
    EOFError,
    MemoryError,  # a header may claim any number of images
    zipfile.BadZipFile,
    zlib.error,
)
ROWS = 64
"""Rows of a table that are in memory at a time, beside what Parquet itself has read."""


def parquet_examples(path: Path, bad: Bad) -> Iterator[Example]:
    """Rows with a column ``image`` ({bytes, path}, or bytes) and one ``label``; a path in it is never opened.

    Labels that the file names (Hugging Face's ClassLabel) are these names.
    """
    parquet = import_extra("pyarrow.parquet", "parquet", "a Parquet shard")
    arrow = import_extra("pyarrow", "parquet", "a Parquet shard")
    with open_regular(path) as file:
        try:
            table = parquet.ParquetFile(file)
            if missing := {"image", "label"} - set(table.schema_arrow.names):
                raise ShardError(f"{path} has no column {sorted(missing)[0]!r}: columns image and label are read")
            names = _class_names(table.schema_arrow.metadata)
            row = 0
            for batch in table.iter_batches(ROWS, columns=["image", "label"], use_threads=False):
                for image, label in zip(batch.column("image"), batch.column("label"), strict=True):
                    try:
                        yield _row(str(row), image.as_py(), label.as_py(), names)
                    except DataError as error:
                        bad[str(row)] = str(error)
                    row += 1
        except (arrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise ShardError(f"{path} is damaged ({reason}): fetch it again, or skip it with --skip-bad") from error


def _row(name: str, image: Any, label: Any, names: list[str] | None) -> Example:
    content = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(content, bytes):
        raise DataError("it has no bytes, only a path, which is not opened")
    if len(content) > MOST_BYTES:
        raise DataError(f"it has {len(content)} bytes, and at most {MOST_BYTES} are read")
    if names is not None and isinstance(label, int):
        if not 0 <= label < len(names):
            raise DataError(f"its label {label} has no name among {len(names)}")
        label = names[label]
    return Example(name, plain_label(label), content)


def _class_names(metadata: dict[bytes, bytes] | None) -> list[str] | None:
    try:
        said = json.loads((metadata or {})[b"huggingface"])["info"]["features"]["label"]["names"]
    except (LookupError, TypeError, ValueError, RecursionError):
        return None
    return said if isinstance(said, list) and all(isinstance(name, str) for name in said) else None


def array_examples(path: Path) -> Iterator[Example]:
    """An npz file with ``images``, uint8 (N, C, H, W), (N, H, W, C) or (N, H, W), and ``labels``, one per image."""
    with open_regular(path) as file:
        try:
            with np.load(file, allow_pickle=False) as held:
                pixels, given = to_uint8_nchw(torch.from_numpy(held["images"])), held["labels"].tolist()
            if pixels.shape[1] not in OPAQUE:
                raise DataError(f"its images must have 1 or 3 channels; they have {pixels.shape[1]}")
            if not isinstance(given, list) or len(given) != len(pixels):
                raise DataError("it must hold one label per image")
            labels = [plain_label(label) for label in given]
        except _UNREADABLE as error:
            reason = str(error) or type(error).__name__
            if "pickle" in reason:  # numpy would have the user trust the file
                reason = "it holds no arrays of plain numbers"
            raise ShardError(
                f"{path} cannot be read ({reason}): it must hold the arrays images and labels; fetch it again, or skip "
                "it with --skip-bad"
            ) from error
    for position, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        yield Example(str(position), label, image)
