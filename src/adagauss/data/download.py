"""Download datasets from their official addresses with checksums, and unpack untrusted archives safely.

Nothing is written outside the target folder, and no incomplete extraction is left behind.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath

from adagauss.data.dataset import Download, datasets
from adagauss.errors import AdagaussError, DataError, unknown_name
from adagauss.utils.progress import Advance, Reporter, ignore

logger = logging.getLogger(__name__)

DOWNLOAD_FOLDER = "downloads"

Retriever = Callable[[Download, Path], None]
"""Downloads one file to a path, or raises; `retrieve` by default."""


def fetch(name: str, root: Path, *, retriever: Retriever | None = None, reporter: Reporter | None = None) -> Path:
    """Download a dataset and unpack it below ``root``; returns its folder.

    A file with the right checksum that is already there is not downloaded again. Fetching again repairs a dataset that
    was only partly extracted.
    """
    info = datasets().get(name)
    if info is None or info.source is None:
        raise _not_to_be_fetched(name)
    source = info.source
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
    info = datasets().get(name.partition(":")[0])
    if info is not None and info.manual:
        return DataError(f"{name} cannot be downloaded from here. {info.manual}")
    if info is not None and info.takes_path:
        return DataError(
            f"{info.name} is for images of your own, nothing is downloaded: sort them into one folder per class and "
            f"name it, as in --dataset {info.name}:path/to/images"
        )
    if info is not None and info.name == name and not info.folder:
        return DataError(f"{name} needs no download: use it as it is, with --dataset {name}")
    if info is not None and info.name == name:
        return DataError(f"{name} cannot be downloaded from here: put it into {info.folder}/ below the data root")
    return unknown_name("dataset to fetch", name, [info.name for info in datasets().values() if info.fetchable])


@contextmanager
def _folder_of(file: Path) -> Iterator[None]:
    """Make the folder of a file; if it stays empty it is removed, so that it does not look like a dataset."""
    made = [folder for folder in (file.parent, *file.parent.parents) if not folder.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        # The folder for archives is kept: after a failure the error tells the user to put one there.
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
            self._advance = self._opened.enter_context(self._reporter.progress(f"{self._name}, MB", self.total / 1e6))
        self._advance(step=amount / 1e6)

    def reset(self) -> None:
        """Stop counting: pooch counts all bytes a second time at the end."""
        self._advance = ignore

    def close(self) -> None:
        """Nothing is left to do."""


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
    """Raise if a folder of the archive exists as a link: its files would be written to where the link points."""
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
