"""Decoded images on disk, so that the second run on a dataset starts at once."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from adagauss.data.decode import DECODER, Pixels, pixel_limit

logger = logging.getLogger(__name__)

Indices = npt.NDArray[np.int64]
OURS = re.compile(r"[0-9a-f]{32}(\.kept)?(\.npy|\.[0-9a-f]{32}\.part)")
"""Names of the files a cache writes; a folder may hold others, which are never touched."""


def root_cache(root: Path) -> Path:
    """The cache of the datasets below a data root."""
    return root / ".cache"


def cached_files(folder: Path) -> list[Path]:
    """The files that caches have written into a folder, which need not exist."""
    return sorted(file for file in folder.glob("*") if OURS.fullmatch(file.name)) if folder.is_dir() else []


def user_cache() -> Path | None:
    """This user's cache folder, made if need be and closed to others; None where it cannot be written."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # The XDG specification has relative paths ignored.
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "adagauss"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # a home that is read-only, or that cannot be found at all
        logger.info("decoded images are not kept for the next run: %s", error)
        return None
    return folder if os.access(folder, os.W_OK) else None


@dataclass(frozen=True)
class StoredPixels:
    """Decoded images and the positions they had among the files given."""

    pixels: Pixels
    kept: Indices


class PixelCache:
    """Two plain ``.npy`` files (never pickles) named by what they were made of.

    The name is a hash of every file's path, size and time of change and of how images are decoded: a changed
    file is decoded again. Trouble with the cache is logged, never raised, since it is only a convenience.
    """

    def __init__(
        self, folder: Path, paths: Sequence[Path], size: int, channels: int, max_pixels: int | None = None
    ) -> None:
        self._folder = folder
        self._shape = (channels, size, size)
        self._count = len(paths)
        name = _fingerprint(paths, size, channels, pixel_limit(max_pixels))
        self.pixels_file = folder / f"{name}.npy"
        self.kept_file = folder / f"{name}.kept.npy"

    def load(self) -> StoredPixels | None:
        """What was stored for these files, mapped from disk; None if there is nothing sound."""
        kept = self.load_kept()
        # Copy-on-write mapping: pages are shared between runs, yet torch sees a writable array.
        pixels = _read(self.pixels_file, mmap_mode="c")
        if kept is None or pixels is None:
            return None
        if pixels.dtype != np.uint8 or pixels.shape != (len(kept), *self._shape):
            return None
        return StoredPixels(pixels, kept)

    def load_kept(self) -> Indices | None:
        """Which of the files decoded, if that was found out before."""
        kept = _read(self.kept_file)
        if kept is None or kept.dtype != np.int64 or kept.ndim != 1:
            return None
        rising = len(kept) > 0 and kept[0] >= 0 and kept[-1] < self._count and bool((np.diff(kept) > 0).all())
        return kept if rising else None

    def store(self, pixels: Pixels, kept: Indices) -> None:
        """Keep decoded images for the next run."""
        if self.store_kept(kept):
            self._write(self.pixels_file, pixels)

    def store_kept(self, kept: Indices) -> bool:
        """Keep which files decoded; whether that could be written."""
        return self._write(self.kept_file, kept)

    def _write(self, file: Path, array: npt.NDArray[Any]) -> bool:
        # Written aside and moved into place: no reader ever sees half a file. Not with `tempfile`, whose files
        # nobody else may read: on a shared data root the cache should serve everybody the umask lets in.
        temporary = self._folder / f"{file.stem}.{uuid.uuid4().hex}.part"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("xb") as stream:
                    np.save(stream, array, allow_pickle=False)
                temporary.replace(file)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            logger.info("decoded images are not kept for the next run: %s", error)
            return False
        return True


def _read(file: Path, mmap_mode: Literal["c"] | None = None) -> npt.NDArray[Any] | None:
    try:
        array: npt.NDArray[Any] = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        logger.warning("ignored a damaged cache of decoded images, %s: %s", file, error)
        return None
    return array


def _fingerprint(paths: Sequence[Path], size: int, channels: int, limit: int) -> str:
    digest = hashlib.sha256(f"{DECODER};{size};{channels};{limit};{len(paths)}".encode())
    for path in paths:
        digest.update(b"\0" + os.fsencode(path.absolute()))
        try:
            state = path.stat()
            digest.update(f"\0{state.st_size};{state.st_mtime_ns}".encode())
        except OSError:  # a missing file fails later, when it is decoded, with a better message
            digest.update(b"\0missing")
    return digest.hexdigest()[:32]
