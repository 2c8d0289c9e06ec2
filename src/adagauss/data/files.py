"""Images in files: decoded once into memory if they fit, else at every use."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from adagauss.data.decode import DECODER, Pixels, check_header, decode_image, pixel_limit
from adagauss.errors import CheckpointError, ConfigError, DataError
from adagauss.utils.checkpoint import load_tensors, save_tensors
from adagauss.utils.files import TEMPORARY
from adagauss.utils.progress import Advance, Reporter, ignore

logger = logging.getLogger(__name__)

_NAMED_AT_MOST = 5


class FileImages:
    """Images in files, as squares of ``size`` pixels (see `decode_image` for modes and cropping).

    If all of them fit into ``cache_bytes`` they are decoded once, kept in memory and, if ``cache_dir`` is writable,
    stored there, so that the next start is fast. If they do not fit, every batch is decoded when requested. ``workers``
    threads decode (Pillow releases the GIL; processes were hardly faster and would import the caller's program again);
    their number does not change the result.

    Files that cannot be decoded raise a `DataError`, or are skipped with ``skip_bad_images``: `kept` then holds which
    of ``paths`` remain, `load_files` selects the labels accordingly, and one warning is logged. ``skip_option`` is the
    option for that, named in the error. For images that are decoded at every use, only the headers are checked
    beforehand, unless bad ones are to be skipped: then all are decoded once. An image of more than
    ``max_pixels`` pixels is refused (None: see `adagauss.data.decode.pixel_limit`).
    """

    def __init__(
        self,
        paths: Sequence[Path],
        size: int,
        *,
        channels: int = 3,
        workers: int = 2,
        cache_bytes: int = 4 * 2**30,
        cache_dir: Path | None = None,
        skip_bad_images: bool = False,
        skip_option: str = "--skip-bad",
        reporter: Reporter | None = None,
        max_pixels: int | None = None,
    ) -> None:
        if not paths:
            raise DataError("no image files given")
        if size < 1 or channels not in (1, 3):
            raise DataError(f"images need a size of at least 1 and 1 or 3 channels; got {size} and {channels}")
        self._size, self._channels, self._workers = size, channels, max(1, workers)
        self._skip, self._skip_option = skip_bad_images, skip_option
        self._max_pixels = pixel_limit(max_pixels)
        self._pixels: Tensor | None = None
        self.paths = list(paths)
        cache = PixelCache(cache_dir, paths, size, channels, self._max_pixels) if cache_dir else None
        fits = len(paths) * channels * size * size <= cache_bytes
        load = self._load_all if fits else self._check_all
        kept = load(cache, reporter or Reporter())
        self.kept = torch.from_numpy(kept)
        """Positions of the usable images among the given paths."""
        self.paths = [self.paths[index] for index in kept.tolist()]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._channels, self._size, self._size

    @property
    def in_memory(self) -> bool:
        """Whether the pixels are kept in memory, rather than decoded at every use."""
        return self._pixels is not None

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, indices: Tensor) -> Tensor:
        if self._pixels is not None:
            return self._pixels[indices]
        paths = [self.paths[index] for index in indices.tolist()]
        pixels, bad = self._decode(paths, ignore)
        if bad:
            raise self._undecodable(bad, paths)
        return torch.from_numpy(pixels)

    def _load_all(self, cache: PixelCache | None, reporter: Reporter) -> Indices:
        stored = cache.load() if cache else None
        if stored is not None and (self._skip or len(stored[1]) == len(self.paths)):
            self._pixels = torch.from_numpy(stored[0])
            return self._recalled(stored[1])
        with reporter.progress("decoding images", len(self.paths)) as advance:
            pixels, bad = self._decode(self.paths, advance)
        kept = self._usable(bad)
        if bad:
            pixels = pixels[kept]
        if cache:
            cache.store(pixels, kept)
        self._pixels = torch.from_numpy(pixels)
        return kept

    def _check_all(self, cache: PixelCache | None, reporter: Reporter) -> Indices:
        if not self._skip:
            # Reading a header holds the GIL: more threads would only block each other.
            def check(index: int) -> None:
                check_header(self.paths[index], self._max_pixels)

            with reporter.progress("checking images", len(self.paths)) as advance:
                bad = map_collecting_errors(check, len(self.paths), 1, advance)
            return self._usable(bad)
        known = cache.load_kept() if cache else None
        if known is not None:
            return self._recalled(known)

        def decodes(index: int) -> Pixels:
            return decode_image(self.paths[index], self._size, self._channels, self._max_pixels)

        with reporter.progress("checking images", len(self.paths)) as advance:
            kept = self._usable(map_collecting_errors(decodes, len(self.paths), self._workers, advance))
        if cache:
            cache.store_kept(kept)
        return kept

    def _decode(self, paths: Sequence[Path], advance: Advance) -> tuple[Pixels, dict[int, str]]:
        """The pixels of ``paths``, and for each failed path (its row is undefined) the reason."""
        pixels = np.empty((len(paths), *self.shape), dtype=np.uint8)

        def fill(row: int) -> None:
            pixels[row] = decode_image(paths[row], self._size, self._channels, self._max_pixels)

        return pixels, map_collecting_errors(fill, len(paths), self._workers, advance)

    def _undecodable(self, bad: dict[int, str], paths: Sequence[Path]) -> DataError:
        return DataError(
            f"{len(bad)} of {len(paths)} images cannot be decoded: {some_named(bad, lambda index: str(paths[index]))}. "
            f"Repair or remove them, or skip them with {self._skip_option}."
        )

    def _recalled(self, kept: Indices) -> Indices:
        skipped = len(self.paths) - len(kept)
        if skipped:
            logger.warning("skipped %d of %d images that could not be decoded before", skipped, len(self.paths))
        return kept

    def _usable(self, bad: dict[int, str]) -> Indices:
        if bad and not self._skip:
            raise self._undecodable(bad, self.paths)
        if len(bad) == len(self.paths):
            raise DataError(f"none of {len(self.paths)} images can be decoded (first: {self.paths[0]}: {bad[0]})")
        if bad:
            named = some_named(bad, lambda index: str(self.paths[index]))
            logger.warning("skipped %d of %d images: %s", len(bad), len(self.paths), named)
        return np.array([index for index in range(len(self.paths)) if index not in bad], dtype=np.int64)


def load_files(paths: Sequence[Path], targets: Tensor, size: int, **settings: Any) -> tuple[FileImages, Tensor]:
    """The usable images with their targets; ``settings`` as for `FileImages`."""
    if len(paths) != len(targets):
        raise DataError(f"{len(paths)} image files but {len(targets)} labels: give one label per image")
    images = FileImages(paths, size, **settings)
    return images, targets[images.kept]


def some_named(bad: Mapping[int, str], name: Callable[[int], str]) -> str:
    """The first few bad images with their reasons, and how many more there are.

    >>> some_named({0: "empty", 7: "torn"}, "image {}".format)
    'image 0 (empty); image 7 (torn)'
    """
    named = "; ".join(f"{name(index)} ({reason})" for index, reason in list(bad.items())[:_NAMED_AT_MOST])
    return named + (f"; and {len(bad) - _NAMED_AT_MOST} more" if len(bad) > _NAMED_AT_MOST else "")


Indices = npt.NDArray[np.int64]
SWITCH = "ADAGAUSS_CACHE"
OURS = re.compile(
    r"[0-9a-f]{32}\.(pixels|kept)\.safetensors|"
    r"[0-9a-f]{32}(\.kept)?(\.npy|\.[0-9a-f]{32}\.part)|" + TEMPORARY.pattern  # those of release 0.1
)
"""Names of the files a cache writes; other files in the folder are never touched."""


def switched_on() -> bool:
    """Whether decoded images may be kept on disk: yes, unless the environment has ``ADAGAUSS_CACHE=off``.

    >>> switched_on()
    True
    """
    value = os.environ.get(SWITCH, "on").lower()
    if value not in ("on", "off", ""):
        raise ConfigError(f"{SWITCH} is on or off; got {value!r}")
    return value != "off"


def root_cache(root: Path) -> Path:
    """The cache of the datasets below a data root."""
    return root / ".cache"


def cached_files(folder: Path) -> list[Path]:
    """The cache files in a folder; the folder need not exist."""
    return sorted(file for file in folder.glob("*") if OURS.fullmatch(file.name)) if folder.is_dir() else []


def user_cache() -> Path | None:
    """This user's cache folder, created if needed and readable only by its owner; None if it is not writable."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # The XDG specification says to ignore relative paths.
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "adagauss"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # the home folder is read-only or missing
        logger.info("decoded images are not kept for the next run: %s", error)
        return None
    return folder if os.access(folder, os.W_OK) else None


class PixelCache:
    """Decoded images in a file that is named by their source; its digest is checked at every read.

    The name is a hash of every file's path, size and times of change and of how images are decoded: a changed file is
    decoded again. Problems with the cache are logged, never raised, since it only saves time. Images may be private:
    the files, and the folder if it is created here, are readable only by their owner. Files of other users are not
    read.
    """

    def __init__(
        self, folder: Path, paths: Sequence[Path], size: int, channels: int, max_pixels: int | None = None
    ) -> None:
        self._folder = folder
        self._shape = (channels, size, size)
        self._count = len(paths)
        self._name = _fingerprint(paths, size, channels, pixel_limit(max_pixels))
        self.pixels_file = folder / f"{self._name}.pixels.safetensors"
        self.kept_file = folder / f"{self._name}.kept.safetensors"

    def load(self) -> tuple[Pixels, Indices] | None:
        """Stored pixels, mapped from disk, and the positions of their files; None without a valid cache."""
        tensors = self._read(self.pixels_file, "pixels")
        kept = self._sound(tensors)
        if kept is None or "pixels" not in tensors:
            return None
        # Copy-on-write mapping: pages are shared between runs, yet torch sees a writable array.
        pixels = tensors["pixels"]
        if pixels.dtype != torch.uint8 or tuple(pixels.shape) != (len(kept), *self._shape):
            return None
        return pixels.numpy(), kept

    def load_kept(self) -> Indices | None:
        """Which of the files can be decoded, if this is stored."""
        return self._sound(self._read(self.kept_file, "kept"))

    def store(self, pixels: Pixels, kept: Indices) -> None:
        """Keep decoded images for the next run."""
        if self.store_kept(kept):
            self._write(self.pixels_file, "pixels", {"pixels": pixels, "kept": kept})

    def store_kept(self, kept: Indices) -> bool:
        """Store which files can be decoded; returns whether it was written."""
        return self._write(self.kept_file, "kept", {"kept": kept})

    def _sound(self, tensors: Mapping[str, Tensor]) -> Indices | None:
        kept = tensors.get("kept")
        if kept is None or kept.dtype != torch.int64 or kept.ndim != 1:
            return None
        rising = len(kept) > 0 and kept[0] >= 0 and kept[-1] < self._count and bool((kept.diff() > 0).all())
        return kept.numpy() if rising else None

    def _write(self, file: Path, kind: str, arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_tensors(file, kind, tensors, {"made of": self._name}, mode=0o600)
        except (OSError, CheckpointError) as error:
            logger.info("decoded images are not kept for the next run: %s", error)
            return False
        return True

    def _read(self, file: Path, kind: str) -> dict[str, Tensor]:
        try:
            if file.stat().st_uid not in (os.getuid(), 0):
                logger.info("%s belongs to another user: images are decoded again", file)
                return {}
            tensors, facts = load_tensors(file, kind, mapped=True)
        except FileNotFoundError:
            return {}
        except (OSError, CheckpointError):
            logger.warning("ignored a damaged cache of decoded images, %s: they are decoded again", file)
            return {}
        return tensors if facts.get("made of") == self._name else {}


def _fingerprint(paths: Sequence[Path], size: int, channels: int, limit: int) -> str:
    digest = hashlib.sha256(f"{DECODER};{size};{channels};{limit};{len(paths)}".encode())
    for path in paths:
        digest.update(b"\0" + os.fsencode(path.absolute()))
        try:
            state = path.stat()
            # The change time (ctime) as well: copying tools reset the modification time.
            digest.update(f"\0{state.st_size};{state.st_mtime_ns};{state.st_ctime_ns}".encode())
        except OSError:  # a missing file fails later, when it is decoded, with a better message
            digest.update(b"\0missing")
    return digest.hexdigest()[:32]


_TASK = 16


def map_collecting_errors(
    work: Callable[[int], object], count: int, workers: int, advance: Advance = ignore
) -> dict[int, str]:
    """Call ``work`` for every index below ``count`` in threads; returns the error messages by index."""

    def attempt(indices: range) -> dict[int, str]:
        found = {index: _reason(work, index) for index in indices}
        return {index: reason for index, reason in found.items() if reason is not None}

    # Several indices per submitted task: submitting one costs as much as decoding a small image.
    tasks = [range(first, min(first + _TASK, count)) for first in range(0, count, _TASK)]
    failed: dict[int, str] = {}
    pool = ThreadPoolExecutor(workers) if workers > 1 else None
    try:
        for indices, reasons in zip(tasks, (pool.map if pool else map)(attempt, tasks), strict=True):
            failed |= reasons
            advance(step=len(indices))
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)  # an interrupted run must not wait for queued tasks
    return failed


def _reason(work: Callable[[int], object], index: int) -> str | None:
    try:
        work(index)
    except MemoryError:
        raise
    except Exception as error:  # image decoders raise nearly any exception on damaged files
        return str(error) or type(error).__name__
    return None
