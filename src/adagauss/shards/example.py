"""One image of a shard with its label, before it is decoded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from adagauss.data.images import Label
from adagauss.errors import DataError

MOST_BYTES = 2**27
"""An encoded image may take this much: more than the largest one that is decoded needs."""
MOST_LABEL_BYTES = 2**16
LONGEST_LABEL = 500
LABEL_KEYS = ("label", "cls", "class")
"""Where a JSON object may hold the label."""


class ShardError(DataError):
    """A shard that cannot be read to its end; none of it counts."""


@dataclass(frozen=True)
class Example:
    """An image as it was found."""

    name: str
    label: Label
    image: bytes | Tensor
    """An encoded file, or uint8 pixels (C, H, W)."""

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self.image) if isinstance(self.image, bytes) else self.image.numel()

    def digest(self) -> bytes:
        """Of the image alone, in 16 bytes."""
        content = self.image if isinstance(self.image, bytes) else self.image.contiguous().numpy().tobytes()
        return hashlib.blake2b(content, digest_size=16).digest()


def plain_label(value: object) -> Label:
    """A label of a file: text or a number; an error for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"its label is {str(value)[:50]!r}: a label is text or a whole number")
    if isinstance(value, str):
        value = value.strip()
        if not value or len(value) > LONGEST_LABEL or "\0" in value:
            raise DataError(f"its label {value[:50]!r} is empty or too long: the name of a class is needed")
    return value


def label_of_files(found: Mapping[str, bytes]) -> Label:
    """The label among the files of one sample, by suffix: ``cls``, then ``txt``, then ``json``."""
    try:
        if "cls" in found:
            text = found["cls"].decode("utf-8").strip()
            return plain_label(int(text) if text.isdecimal() and len(text) < 16 else text)
        if "txt" in found:
            return plain_label(found["txt"].decode("utf-8"))
        if "json" in found:
            return plain_label(_in_json(json.loads(found["json"])))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DataError(f"its label cannot be read ({type(error).__name__})") from None
    raise DataError("it has no label: a file with the same name and the suffix cls, txt or json holds it")


def _in_json(value: Any) -> object:
    if isinstance(value, dict):
        for key in LABEL_KEYS:
            if key in value:
                return value[key]
        raise DataError(f"its json file holds none of {', '.join(LABEL_KEYS)}")
    return value
