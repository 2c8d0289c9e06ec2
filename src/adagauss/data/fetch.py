"""Downloading datasets from their official addresses, with checksums."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from adagauss.data.archives import extract
from adagauss.data.dataset import datasets
from adagauss.data.sources import BY_HAND, SOURCES, Download
from adagauss.errors import AdagaussError, DataError, unknown_name
from adagauss.progress import BYTES, Advance, Reporter, ignore

logger = logging.getLogger(__name__)

DOWNLOAD_FOLDER = "downloads"

Retriever = Callable[[Download, Path], None]
"""Downloads one file to a path, or raises; `retrieve` by default."""


def fetch(name: str, root: Path, *, retriever: Retriever | None = None, reporter: Reporter | None = None) -> Path:
    """Download a dataset and unpack it below ``root``; returns its folder.

    A file with the right checksum that is already there is not downloaded again. Fetching again repairs a dataset that
    was only partly extracted.
    """
    if name not in SOURCES:
        raise _not_to_be_fetched(name)
    source = SOURCES[name]
    folder = root / source.folder
    place = root / DOWNLOAD_FOLDER if source.extract else folder
    get = retriever or partial(retrieve, reporter=reporter)
    files = [_obtain(name, download, place / download.name, get) for download in source.downloads]
    if source.extract:
        for file in files:
            logger.info("extracting %s into %s", file, folder)
            extract(file, folder)
    return folder


def retrieve(download: Download, file: Path, reporter: Reporter | None = None) -> None:
    """Download one file."""
    import pooch

    with _DownloadBar(download.name, reporter or Reporter()) as bar:
        pooch.retrieve(
            download.url,
            known_hash=download.checksum,
            fname=file.name,
            path=file.parent,
            downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=2**20),
        )


def _not_to_be_fetched(name: str) -> AdagaussError:
    if name in BY_HAND:
        return DataError(f"{name} cannot be downloaded from here. {BY_HAND[name]}")
    info = datasets().get(name.partition(":")[0])
    if info is not None and info.takes_path:
        return DataError(
            f"{info.name} is for images of your own, nothing is downloaded: sort them into one folder per class and "
            f"name it, as in --dataset {info.name}:path/to/images"
        )
    if info is not None and info.name == name and not info.folder:
        return DataError(f"{name} needs no download: use it as it is, with --dataset {name}")
    if info is not None and info.name == name:
        return DataError(f"{name} cannot be downloaded from here: put it into {info.folder}/ below the data root")
    return unknown_name("dataset to fetch", name, SOURCES)


@contextmanager
def _folder_of(file: Path) -> Iterator[None]:
    """Make the folder of a file; if it stays empty it is removed, so that it does not look like a dataset."""
    made = [folder for folder in (file.parent, *file.parent.parents) if not folder.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        # The folder for archives is kept: after a failure the user is asked to put one there.
        for folder in made if file.parent.name != DOWNLOAD_FOLDER else ():
            with suppress(OSError):  # a folder that is not empty is kept
                folder.rmdir()


def _obtain(name: str, download: Download, file: Path, retriever: Retriever) -> Path:
    if file.is_file() and _has_checksum(file, download.checksum):
        return file
    unsound = " The file that is there now is another file or incomplete." if file.exists() else ""
    try:
        with _folder_of(file):
            retriever(download, file)
    except Exception as error:  # no network, a moved address, a wrong checksum: all have the same remedy
        raise DataError(
            f"{name}: {download.url} could not be downloaded ({error}). Download it in another way, put it "
            f"at {file}, and run `adagauss datasets fetch {name}` again.{unsound}"
        ) from error
    if not file.is_file() or not _has_checksum(file, download.checksum):
        raise DataError(f"{name}: the file from {download.url} is not the official one ({file})")
    return file


def _has_checksum(file: Path, checksum: str) -> bool:
    algorithm, _, expected = checksum.partition(":")
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest() == expected


class _DownloadBar:
    """A progress bar with the interface that pooch expects: it sets `total`, then calls the methods."""

    def __init__(self, name: str, reporter: Reporter) -> None:
        self._name = name
        self._reporter = reporter
        self._opened = ExitStack()
        self._advance: Advance | None = None
        self.total = 0

    def __enter__(self) -> _DownloadBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def update(self, amount: int) -> None:
        """Count bytes that arrived."""
        if self._advance is None:  # the total is known only now
            self._advance = self._opened.enter_context(self._reporter.progress(self._name, self.total, BYTES))
        self._advance(step=amount)

    def reset(self) -> None:
        """Stop counting: pooch counts all bytes a second time at the end."""
        self._advance = ignore

    def close(self) -> None:
        """Nothing is left to do."""
