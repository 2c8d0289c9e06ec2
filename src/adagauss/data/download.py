"""Download datasets from their official addresses with checksums, and unpack untrusted archives safely.

Nothing is written outside the target folder, and no incomplete extraction is left behind.
"""

from __future__ import annotations

import gzip
import logging
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from adagauss.data.dataset import dataset_info, how_to_get
from adagauss.errors import DataError
from adagauss.utils.progress import Advance, Reporter, ignore

logger = logging.getLogger(__name__)

DOWNLOAD_FOLDER = "downloads"


def fetch(name: str, root: Path, *, reporter: Reporter | None = None) -> Path:
    """Download a dataset and unpack it below ``root``; returns the folder of its files.

    Files stay in ``root/downloads``: one that is there with the right checksum is not downloaded again. Fetching again
    repairs a dataset that was only partly extracted.
    """
    info = dataset_info(name)
    if not info.downloads:
        raise DataError(f"{name} cannot be downloaded from here. {how_to_get(info)}")
    bars, archives = reporter or Reporter(), root / DOWNLOAD_FOLDER
    files = [_obtain(name, url, md5, archives, bars) for url, md5 in info.downloads.items()]
    folder = root / (info.folder if info.unpack_into is None else info.unpack_into)
    for file in files:
        if info.unpack_into is None:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder)
        else:
            logger.info("extracting %s into %s", file, folder)
            extract(file, folder)
    return folder


def _obtain(name: str, url: str, md5: str, folder: Path, reporter: Reporter) -> Path:
    """Return the path of an official file; pooch downloads it unless a file with its checksum is there."""
    import pooch

    file = folder / url.rsplit("/", 1)[1]
    there = file.exists()
    try:
        with ExitStack() as stack:
            bar = _DownloadBar(file.name, reporter, stack)
            downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**20)
            pooch.retrieve(url, f"md5:{md5}", file.name, folder, downloader=downloader)
    except Exception as error:  # no network, a moved address, a wrong checksum: all have the same remedy
        unsound = " The file that is there now is another file or incomplete." if there else ""
        raise DataError(
            f"{name}: {url} could not be downloaded ({error}). Download it in another way, put it at {file}, and run "
            f"`adagauss list datasets --fetch {name}` again.{unsound}"
        ) from error
    return file


class _DownloadBar:
    """A progress bar with the interface that pooch expects: it sets `total`, then calls the methods."""

    def __init__(self, name: str, reporter: Reporter, stack: ExitStack) -> None:
        self._name, self._reporter, self._stack = name, reporter, stack
        self._advance: Advance | None = None
        self.total = 0

    def update(self, amount: int) -> None:
        """Count bytes that arrived."""
        if self._advance is None:  # the total is known only now
            self._advance = self._stack.enter_context(self._reporter.progress(f"{self._name}, MB", self.total / 1e6))
        self._advance(step=amount / 1e6)

    def reset(self) -> None:
        """Stop counting: pooch counts all bytes a second time at the end."""
        self._advance = ignore

    def close(self) -> None:
        """Do nothing: the reporter closes the bar."""


def extract(archive: Path, target: Path) -> None:
    """Unpack a tar or zip file into ``target``, replacing files of the same name.

    It is first unpacked into a temporary folder: an interrupted or refused extraction leaves ``target`` unchanged.
    """
    target.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".extracting-", dir=target))
    try:
        # Paths and links leading out, and devices, are refused (tar) or left out (zip).
        if zipfile.is_zipfile(archive):
            shutil.unpack_archive(archive, aside, "zip")
        else:
            shutil.unpack_archive(archive, aside, "tar", filter="data")
        moves = [*_moves(aside, target, archive)]  # before anything is moved: a refused extraction changes nothing
        for source, place in moves:
            source.replace(place)
    except tarfile.FilterError as error:
        raise DataError(f"{archive} was not extracted, it may be malicious: {error}") from error
    except (tarfile.TarError, shutil.ReadError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive} is damaged ({error}): delete it and fetch it again") from error
    except OSError as error:
        raise DataError(f"{archive} could not be extracted into {target} ({error})") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _moves(source: Path, target: Path, archive: Path) -> Iterator[tuple[Path, Path]]:
    """Yield pairs of source and target, file by file where a folder exists; raises if the folder is a link."""
    for path in sorted(source.iterdir()):
        place = target / path.name
        if path.is_symlink() or not path.is_dir():
            yield path, place
        elif place.is_symlink():
            raise DataError(
                f"{archive} was not extracted: {place} is a link, and its files would be written to where it points. "
                "Remove the link, or extract the archive there by hand"
            )
        elif place.is_dir():
            yield from _moves(path, place, archive)
        else:
            yield path, place
