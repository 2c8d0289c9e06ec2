"""Shards of labelled images: class folders, tar files (WebDataset), Parquet files and npz arrays, read sequentially."""

from __future__ import annotations

import hashlib
import json
import math
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from adagauss.data.folders import IMAGE_SUFFIXES, folders_in, image_files
from adagauss.data.images import Label, normal_label, to_uint8_nchw
from adagauss.errors import ConfigError, DataError
from adagauss.utils.files import open_regular, resolve_path
from adagauss.utils.registry import import_extra

MAX_BYTES = 2**27
"""Limit for an encoded image; images within the limit of pixels are smaller."""
MAX_LABEL_BYTES = 2**16
MAX_LABEL_LENGTH = 500
LABEL_KEYS = ("label", "cls", "class")
"""Where a JSON object may hold the label."""


class ShardError(DataError):
    """A shard that cannot be read to its end; none of its images are used."""


@dataclass(frozen=True)
class Example:
    """An image before decoding."""

    name: str
    label: Label
    image: bytes | Tensor
    """An encoded file, or uint8 pixels (C, H, W)."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.image) if isinstance(self.image, bytes) else self.image.numel()

    def digest(self) -> bytes:
        """Hash the image alone, to 16 bytes."""
        content = self.image if isinstance(self.image, bytes) else self.image.contiguous().numpy().tobytes()
        return hashlib.blake2b(content, digest_size=16).digest()


def plain_label(value: object) -> Label:
    """Check a label: text or an integer, or a mapping with one of `LABEL_KEYS`; raises for anything else."""
    if isinstance(value, dict):
        if not (keys := [key for key in LABEL_KEYS if key in value]):
            raise DataError(f"its json file holds none of {', '.join(LABEL_KEYS)}")
        value = value[keys[0]]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"its label is {str(value)[:50]!r}: a label is text or a whole number")
    if isinstance(value, str):
        value = value.strip()
        if not value or len(value) > MAX_LABEL_LENGTH or "\0" in value:
            raise DataError(f"its label {value[:50]!r} is empty or too long: the name of a class is needed")
    return normal_label(value)


def label_of_files(found: Mapping[str, bytes]) -> Label:
    """Find the label among the files of one sample, by suffix: ``cls``, then ``txt``, then ``json``."""
    suffix = next((suffix for suffix in LABELS if suffix in found), None)
    if suffix is None:
        raise DataError("it has no label: a file with the same name and the suffix cls, txt or json holds it")
    try:
        if suffix == "json":
            return plain_label(json.loads(found[suffix]))
        text = found[suffix].decode("utf-8").strip()
        return plain_label(int(text) if suffix == "cls" and text.isdecimal() and len(text) < 16 else text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"its label cannot be read ({type(error).__name__})") from None


PICTURES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
LABELS = ("cls", "txt", "json")
MAX_HEADER = 2**20
"""Bytes of the extended header of a member, which tarfile reads at once."""
GZIP = b"\x1f\x8b"
Bad = dict[str, str]
"""Maps the names of unusable samples to the reasons."""


class _Member(tarfile.TarInfo):
    """A header that raises an error if it is damaged or too large; tarfile would silently end the archive there."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the block of zeros at the end
            raise
        except tarfile.HeaderError as error:
            reason = "it ends too early" if not buf else str(error)
            raise tarfile.ReadError(reason) from None
        if not member.isreg() and member.size > MAX_HEADER:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def tar_examples(path: Path, bad: Bad) -> Iterator[Example]:
    """Read the samples of a tar file once, from its beginning to its end; unusable ones go to ``bad``."""
    with open_regular(path) as file:
        mode: Literal["r|gz", "r|"] = "r|gz" if file.peek(2)[:2] == GZIP else "r|"
        with tarfile.open(fileobj=file, mode=mode, tarinfo=_Member) as tar:
            for name, members in groupby(_members(tar), key=lambda member: _split_name(member.name)[0]):
                found = dict[str, bytes]()
                for member in members:
                    suffix = _split_name(member.name)[1]
                    most = MAX_LABEL_BYTES if suffix in LABELS else MAX_BYTES
                    if member.size > most:
                        bad[name] = f"its {suffix} file has {member.size} bytes, and at most {most} are read"
                    else:
                        found[suffix] = _content(tar, member)
                picture = next((found[suffix] for suffix in found if suffix in PICTURES), None)
                if picture is None or name in bad:
                    continue  # texts without an image
                try:
                    yield Example(name, label_of_files(found), picture)
                except DataError as error:
                    bad[name] = str(error)


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of the images and labels of an archive."""
    for member in tar:
        tar.members = []  # type: ignore[attr-defined]  # or tarfile keeps every header
        if member.isreg() and _split_name(member.name)[1] in PICTURES.union(LABELS):
            yield member


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    content = stream.read() if stream is not None else b""
    if len(content) != member.size:
        raise tarfile.ReadError("it ends too early")
    return content


def _split_name(name: str) -> tuple[str, str]:
    """Split the name of a member into that of its sample and the suffix; hidden files have neither.

    >>> _split_name("train/0001.seg.png"), _split_name("./a.b/7.JPG"), _split_name("x/._7.jpg")
    (('train/0001', 'seg.png'), ('./a.b/7', 'jpg'), ('', ''))
    """
    path = PurePosixPath(name)
    stem, _, suffix = path.name.partition(".")
    if not stem:
        return "", ""
    return name[: len(name) - len(path.name)] + stem, suffix.lower()


PARQUET_ROWS = 64
"""Rows of a table that are in memory at a time, in addition to Parquet's own buffers."""


def parquet_examples(path: Path, bad: Bad) -> Iterator[Example]:
    """Read rows with the columns ``image`` ({bytes, path}, or bytes) and ``label``; a path is never opened.

    If the file names its labels (Hugging Face's ClassLabel), the names are used.
    """
    parquet = import_extra("pyarrow.parquet", "parquet", "a Parquet shard")
    with open_regular(path) as file:
        table = parquet.ParquetFile(file)
        if missing := {"image", "label"} - set(table.schema_arrow.names):
            raise DataError(f"it has no column {sorted(missing)[0]!r}: columns image and label are read")
        names = None
        with suppress(LookupError, TypeError, ValueError, RecursionError):
            about = json.loads((table.schema_arrow.metadata or {})[b"huggingface"])
            names = about["info"]["features"]["label"]["names"]
        row = 0
        for batch in table.iter_batches(PARQUET_ROWS, columns=["image", "label"], use_threads=False):
            for image, label in zip(batch.column("image"), batch.column("label"), strict=True):
                try:
                    yield _row(str(row), image.as_py(), label.as_py(), names)
                except DataError as error:
                    bad[str(row)] = str(error)
                row += 1


def _row(name: str, image: Any, label: Any, names: object) -> Example:
    content = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(content, bytes):
        raise DataError("it has no bytes, only a path, which is not opened")
    if len(content) > MAX_BYTES:
        raise DataError(f"it has {len(content)} bytes, and at most {MAX_BYTES} are read")
    if isinstance(names, list) and isinstance(label, int):
        if not 0 <= label < len(names):
            raise DataError(f"its label {label} has no name among {len(names)}")
        label = names[label]
    return Example(name, plain_label(label), content)


ARRAY_BYTES = 2**23
"""Pixels of an npz file that are read at once."""
MAX_LABELS_BYTES = 2**28


def array_examples(path: Path, bad: Bad) -> Iterator[Example]:
    """Read an npz file: ``images``, uint8 (N, C, H, W), (N, H, W, C) or (N, H, W), and one of ``labels`` per image."""
    with open_regular(path) as file, np.load(file, allow_pickle=False) as held:
        if held.zip.getinfo("labels.npy").file_size > MAX_LABELS_BYTES:
            raise DataError(f"its labels take more than {MAX_LABELS_BYTES:,} bytes")
        labels = held["labels"].tolist()
        with held.zip.open("images.npy") as stream:
            version = np.lib.format.read_magic(stream)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0}.get(
                version, np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read_header(stream)
            if dtype != np.uint8 or fortran:
                raise DataError(f"its images must be uint8 in C order; they are {dtype}")
            if not isinstance(labels, list) or len(labels) != (shape[0] if shape else 0):
                raise DataError("it must hold one label per image")
            size = math.prod(shape[1:])
            if size > MAX_BYTES:
                raise DataError(f"an image of it takes {size:,} bytes; at most {MAX_BYTES:,} are read")
            step = max(1, ARRAY_BYTES // max(1, size))
            for start in range(0, len(labels), step):
                rows = min(step, len(labels) - start)
                content = np.frombuffer(stream.read(rows * size), np.uint8).reshape(rows, *shape[1:])
                pixels = to_uint8_nchw(torch.from_numpy(content.copy()))
                if pixels.shape[1] not in (1, 3):
                    raise DataError(f"its images must have 1 or 3 channels; they have {pixels.shape[1]}")
                for position, image in enumerate(pixels, start):
                    yield Example(str(position), plain_label(labels[position]), image)


PIECE = 10_000
"""Number of files of a class folder in one shard."""
READERS = {"tar": tar_examples, "parquet": parquet_examples, "arrays": array_examples}
KINDS = {".tar": "tar", ".tgz": "tar", ".tar.gz": "tar", ".parquet": "parquet", ".npz": "arrays"}


@dataclass(frozen=True)
class Shard:
    """A file of many images, or a piece of a class folder."""

    path: Path
    kind: str
    piece: int = 0

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.path}#{self.piece}" if self.piece else str(self.path)

    @property
    def place(self) -> str:
        """Hash of its path: learners store no file names."""
        return _hash(f"{self.path}#{self.piece}")

    def stamp(self) -> str:
        """Hash names, sizes and dates of its files, which change when the files change."""
        states = [(path.name, path.stat()) for path in ([self.path] if self.kind != "folder" else self._files())]
        return _hash("\n".join(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states))

    def examples(self, bad: Bad) -> Iterator[Example]:
        """Read its images in order; those without a usable label go to ``bad``, with the reason."""
        try:
            yield from self._class_folder(bad) if self.kind == "folder" else READERS[self.kind](self.path, bad)
        except ConfigError:  # a library is missing
            raise
        except Exception as error:  # the readers of other libraries raise many exception types for damaged files
            reason = str(error).partition("\n")[0][:200] or type(error).__name__
            if "pickle" in reason:  # NumPy suggests to trust the file
                reason = "it holds no arrays of plain numbers"
            raise ShardError(
                f"{self.name} cannot be read ({reason}): fetch it again, or skip it with --skip-bad"
            ) from error

    def _class_folder(self, bad: Bad) -> Iterator[Example]:
        for path in self._files():
            name = path.relative_to(self.path).as_posix()
            try:
                with open_regular(path) as file:
                    content = file.read(MAX_BYTES + 1)
                if len(content) > MAX_BYTES:
                    raise DataError(f"it has more than {MAX_BYTES} bytes")
            except (DataError, OSError) as error:
                bad[name] = str(error)
                continue
            yield Example(name, normal_label(self.path.name), content)

    def _files(self) -> list[Path]:
        return image_files(self.path)[self.piece * PIECE : (self.piece + 1) * PIECE]


def find_shards(paths: Iterable[Path | str]) -> list[Shard]:
    """List the shards at some paths: files, folders that hold such files, and folders of class folders."""
    found = list(dict.fromkeys(shard for path in paths for shard in _shards_at(resolve_path(Path(path)).absolute())))
    if not found:
        raise DataError("no shards were given")
    return found


def _shards_at(path: Path) -> list[Shard]:
    if not path.is_dir():
        kind = shard_kind(path)
        if kind is None:
            raise DataError(f"{path} is not a shard. Give folders of class folders, or {', '.join(KINDS)} files")
        return [Shard(path, kind)]
    files = [Shard(file, kind) for file in sorted(path.iterdir()) if file.is_file() and (kind := shard_kind(file))]
    pieces = [
        Shard(folder, "folder", piece)
        for folder in folders_in(path)
        for piece in range(-(-len(image_files(folder)) // PIECE))
    ]
    if files and pieces:
        raise DataError(
            f"{path} holds class folders with images, and the shard {files[0].path.name}. Use separate folders, or "
            "name the files"
        )
    if not files and not pieces:
        raise DataError(f"{path} holds neither class folders with images nor {', '.join(KINDS)} files")
    return files or pieces


def shard_kind(path: Path) -> str | None:
    """Return the kind of a shard by the name of its file; None for other files."""
    name = path.name.lower()
    if name.startswith("."):
        return None
    return next((kind for suffix, kind in KINDS.items() if name.endswith(suffix)), None)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
