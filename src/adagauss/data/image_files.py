"""Images in files: decoded once into memory if they fit, else at every use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adagauss.data.decode import Pixels, ResizeMode, check_header, decode_image, pixel_limit
from adagauss.errors import DataError
from adagauss.utils.progress import Advance, Reporter, ignore

logger = logging.getLogger(__name__)

_NAMED_AT_MOST = 5


class FileImages:
    """Images in files, as squares of ``size`` pixels (see `decode_image`).

    If all of them fit into ``cache_bytes``, they are decoded once and kept in memory. If they do not fit, every batch
    is decoded when requested. ``workers`` threads decode (Pillow releases the GIL); their number does not change the
    result.

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
        skip_bad_images: bool = False,
        skip_option: str = "--skip-bad",
        reporter: Reporter | None = None,
        max_pixels: int | None = None,
        resize_mode: ResizeMode = "crop",
    ) -> None:
        if not paths:
            raise DataError("no image files given")
        if size < 1 or channels not in (1, 3):
            raise DataError(f"images need a size of at least 1 and 1 or 3 channels; got {size} and {channels}")
        self._size, self._channels, self._workers = size, channels, max(1, workers)
        self._skip, self._skip_option = skip_bad_images, skip_option
        self._max_pixels, self._mode = pixel_limit(max_pixels), resize_mode
        self._pixels: Tensor | None = None
        self.paths = list(paths)
        fits = len(paths) * channels * size * size <= cache_bytes
        kept = (self._load_all if fits else self._check_all)(reporter or Reporter())
        self.kept = torch.tensor(kept)
        """Positions of the usable images among the given paths."""
        self.paths = [self.paths[index] for index in kept]

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

    def _load_all(self, reporter: Reporter) -> list[int]:
        with reporter.progress("decoding images", len(self.paths)) as advance:
            pixels, bad = self._decode(self.paths, advance)
        kept = self._usable(bad)
        self._pixels = torch.from_numpy(pixels[kept] if bad else pixels)
        return kept

    def _check_all(self, reporter: Reporter) -> list[int]:
        def check(index: int) -> None:
            check_header(self.paths[index], self._max_pixels)

        def decode(index: int) -> None:
            decode_image(self.paths[index], self._size, self._channels, self._max_pixels, self._mode)

        # Reading a header holds the GIL: more threads would only block each other.
        work, workers = (decode, self._workers) if self._skip else (check, 1)
        with reporter.progress("checking images", len(self.paths)) as advance:
            return self._usable(map_collecting_errors(work, len(self.paths), workers, advance))

    def _decode(self, paths: Sequence[Path], advance: Advance) -> tuple[Pixels, dict[int, str]]:
        """The pixels of ``paths``, and for each failed path (its row is undefined) the reason."""
        pixels = np.empty((len(paths), *self.shape), dtype=np.uint8)

        def fill(row: int) -> None:
            pixels[row] = decode_image(paths[row], self._size, self._channels, self._max_pixels, self._mode)

        return pixels, map_collecting_errors(fill, len(paths), self._workers, advance)

    def _undecodable(self, bad: dict[int, str], paths: Sequence[Path]) -> DataError:
        return DataError(
            f"{len(bad)} of {len(paths)} images cannot be decoded: {some_named(bad, lambda index: str(paths[index]))}. "
            f"Repair or remove them, or skip them with {self._skip_option}."
        )

    def _usable(self, bad: dict[int, str]) -> list[int]:
        if bad and not self._skip:
            raise self._undecodable(bad, self.paths)
        if len(bad) == len(self.paths):
            raise DataError(f"none of {len(self.paths)} images can be decoded (first: {self.paths[0]}: {bad[0]})")
        if bad:
            named = some_named(bad, lambda index: str(self.paths[index]))
            logger.warning("skipped %d of %d images: %s", len(bad), len(self.paths), named)
        return [index for index in range(len(self.paths)) if index not in bad]


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
