"""Unpack untrusted archives: nothing is written outside the target, and nothing is left incomplete."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from adagauss.errors import DataError


def extract(archive: Path, target: Path) -> None:
    """Unpack a tar or zip file into ``target``, replacing files of the same name.

    It is first unpacked into a temporary folder: an interrupted or refused extraction leaves ``target`` unchanged.
    """
    target.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".extracting-", dir=target))
    try:
        if zipfile.is_zipfile(archive):
            _extract_zip(archive, aside)
        else:
            _extract_tar(archive, aside)
        # Before anything is moved: a refused extraction changes nothing.
        _refuse_links(aside, target, archive)
        _move_into(aside, target)
    except tarfile.FilterError as error:
        raise _malicious(archive, str(error)) from error
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive} is damaged ({error}): delete it and fetch it again") from error
    except OSError as error:
        raise DataError(f"{archive} could not be extracted into {target} ({error})") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _extract_tar(archive: Path, aside: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(aside, filter="data")  # refuses absolute paths, paths and links leading out, and devices


def _extract_zip(archive: Path, aside: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            name = member.filename.replace("\\", "/")
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or ":" in name:
                raise _malicious(archive, f"{member.filename!r} would be written outside the target folder")
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _malicious(archive, f"{member.filename!r} is a link")
        packed.extractall(aside)


def _refuse_links(source: Path, target: Path, archive: Path) -> None:
    """Raise if a folder of the archive already exists as a link: its files would be written to where the link
    points."""
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_symlink() or not path.is_dir():
            continue
        if place.is_symlink():
            raise DataError(
                f"{archive} was not extracted: {place} is a link, and its files would be written to where it points. "
                "Remove the link, or extract the archive there by hand"
            )
        if place.is_dir():
            _refuse_links(path, place, archive)


def _move_into(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_dir() and not path.is_symlink() and place.is_dir() and not place.is_symlink():
            _move_into(path, place)
        else:
            path.replace(place)


def _malicious(archive: Path, why: str) -> DataError:
    return DataError(f"{archive} was not extracted, it may be malicious: {why}")
