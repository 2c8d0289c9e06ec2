"""Tar shards as WebDataset has them: files with one name and several suffixes are one sample.

Nothing is extracted: names of members are names of samples, and never paths of files.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from adagauss.data.folders import IMAGE_SUFFIXES
from adagauss.errors import DataError
from adagauss.shards.example import MOST_BYTES, MOST_LABEL_BYTES, Example, ShardError, label_of_files
from adagauss.utils.files import open_regular

PICTURES = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
LABELS = frozenset({"cls", "txt", "json"})
MOST_HEADER = 2**20
"""Bytes of the extended header of a member, which tarfile reads at once."""
GZIP = b"\x1f\x8b"
Bad = dict[str, str]
"""Samples that cannot be used, and why."""


class _Member(tarfile.TarInfo):
    """A header that is refused where it is damaged or asks for much memory; tarfile would end the archive there."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the block of zeros at the end
            raise
        except tarfile.HeaderError as error:
            reason = "it ends too early" if not buf else str(error)
            raise tarfile.ReadError(reason) from None
        if not member.isreg() and member.size > MOST_HEADER:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def tar_examples(path: Path, bad: Bad) -> Iterator[Example]:
    """The samples of a tar file, read once from its beginning to its end; ``bad`` gets those that cannot be used."""
    with open_regular(path) as file:
        packed = file.peek(2)[:2] == GZIP
        try:
            with tarfile.open(fileobj=file, mode="r|gz" if packed else "r|", tarinfo=_Member) as tar:
                yield from _samples(tar, bad)
        except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
            raise ShardError(f"{path} is damaged ({error}): fetch it again, or skip it with --skip-bad") from error


def _samples(tar: tarfile.TarFile, bad: Bad) -> Iterator[Example]:
    name, found = "", dict[str, bytes]()
    for member in tar:
        tar.members = []  # type: ignore[attr-defined]  # or tarfile keeps every header
        if not member.isreg():
            continue
        key, suffix = _divided(member.name)
        if suffix not in PICTURES | LABELS:
            continue
        if key != name:
            yield from _sample(name, found, bad)
            name, found = key, {}
        most = MOST_LABEL_BYTES if suffix in LABELS else MOST_BYTES
        if member.size > most:
            bad[key] = f"its {suffix} file has {member.size} bytes, and at most {most} are read"
            continue
        found[suffix] = _content(tar.extractfile(member), member.size)
    yield from _sample(name, found, bad)


def _sample(name: str, found: dict[str, bytes], bad: Bad) -> Iterator[Example]:
    picture = next((found[suffix] for suffix in found if suffix in PICTURES), None)
    if picture is None or name in bad:
        return  # texts without an image
    try:
        label = label_of_files(found)
    except DataError as error:
        bad[name] = str(error)
        return
    yield Example(name, label, picture)


def _divided(name: str) -> tuple[str, str]:
    """The name of a sample and the suffix; a member whose name begins with a dot has none.

    >>> _divided("train/0001.seg.png"), _divided("./a.b/7.JPG"), _divided("x/._7.jpg")
    (('train/0001', 'seg.png'), ('./a.b/7', 'jpg'), ('', ''))
    """
    path = PurePosixPath(name)
    stem, _, suffix = path.name.partition(".")
    if not stem:
        return "", ""
    return name[: len(name) - len(path.name)] + stem, suffix.lower()


def _content(file: IO[bytes] | None, size: int) -> bytes:
    content = file.read() if file is not None else b""
    if len(content) != size:
        raise tarfile.ReadError("it ends too early")
    return content
