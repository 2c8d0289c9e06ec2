"""Downloading datasets from their official addresses, with checksums."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from adagauss.data.archives import extract
from adagauss.data.sources import BY_HAND, SOURCES, Download
from adagauss.errors import DataError, unknown_name

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

logger = logging.getLogger(__name__)

DOWNLOAD_FOLDER = "downloads"

Retriever = Callable[[Download, Path], None]
"""Gets one file to a place, or raises; `retrieve` unless another is given."""


def fetch(name: str, root: Path, *, retriever: Retriever | None = None) -> Path:
    """Download a dataset and lay it out below ``root``; the folder it went to.

    A file already there with the right checksum, put by hand or by an earlier call, is not downloaded again.
    Fetching again mends a dataset that was extracted only in part.
    """
    if name not in SOURCES:
        if name in BY_HAND:
            raise DataError(f"{name} cannot be downloaded from here. {BY_HAND[name]}")
        raise unknown_name("dataset to fetch", name, SOURCES)
    source = SOURCES[name]
    folder = root / source.folder
    place = root / DOWNLOAD_FOLDER if source.extract else folder
    files = [_obtain(name, download, place / download.name, retriever or retrieve) for download in source.downloads]
    if source.extract:
        for file in files:
            logger.info("extracting %s into %s", file, folder)
            extract(file, folder)
    return folder


def retrieve(download: Download, file: Path) -> None:
    """Download one file with a progress bar on standard error."""
    import pooch

    with _DownloadBar(download.name) as bar:
        pooch.retrieve(
            download.url,
            known_hash=download.checksum,
            fname=file.name,
            path=file.parent,
            downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=2**20),
        )


def _obtain(name: str, download: Download, file: Path, retriever: Retriever) -> Path:
    if file.is_file() and _has_checksum(file, download.checksum):
        return file
    unsound = " The file that lies there now is another or only a part of it." if file.exists() else ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        retriever(download, file)
    except Exception as error:  # no network, a moved address, a wrong checksum: all have the same way out
        raise DataError(
            f"{name}: {download.url} could not be downloaded ({error}). Download it by other means, put it "
            f"at {file}, and call `adagauss datasets fetch {name}` again.{unsound}"
        ) from error
    if not file.is_file() or not _has_checksum(file, download.checksum):
        raise DataError(f"{name}: what came from {download.url} is not the official file ({file})")
    return file


def _has_checksum(file: Path, checksum: str) -> bool:
    algorithm, _, expected = checksum.partition(":")
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest() == expected


class _DownloadBar:
    """A rich progress bar in the form that pooch drives: it sets `total`, then calls the methods."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), *Progress.get_default_columns()[1:])
        self._progress: Progress = Progress(
            *columns,
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._progress.add_task(name, total=None)
        self.total = 0

    def __enter__(self) -> _DownloadBar:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def update(self, amount: int) -> None:
        """Count bytes that arrived."""
        self._progress.update(self._task, advance=amount, total=self.total or None)

    def reset(self) -> None:
        """Begin counting anew, as pooch does to end at full."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.refresh()
