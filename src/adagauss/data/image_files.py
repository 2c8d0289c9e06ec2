"""Images in files: decoded once into memory if they fit, else at every use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from adagauss.data.decode import Pixels, ResizeMode, decode_image, image_size, pixel_limit
from adagauss.data.images import CACHE_BYTES
from adagauss.errors import DataError
from adagauss.utils.progress import Advance, Reporter, ignore

logger = logging.getLogger(__name__)

WORKERS = 2
"""Threads that decode (Pillow releases the GIL); their number does not change the result."""
NAMED = 5
"""Bad images that a message names."""


class FileImages:
    """Images in files, as squares of ``size`` pixels (see `decode_image`).

    If all of them fit into ``cache_bytes``, they are decoded once and kept in memory. If they do not fit, every batch
    is decoded when requested, and only the headers are checked beforehand, unless bad images are to be skipped.

    Files that cannot be decoded raise a `DataError`, which names ``skip_option``, or are skipped with ``skip_bad``:
    one warning is logged, and `kept` holds which of ``paths`` remain.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        size: int,
        *,
        channels: int = 3,
        cache_bytes: int = CACHE_BYTES,
        skip_bad: bool = False,
        skip_option: str = "--skip-bad",
        reporter: Reporter | None = None,
        resize_mode: ResizeMode = "crop",
    ) -> None:
        if not paths:
            raise DataError("no image files given")
        if size < 1 or channels not in (1, 3):
            raise DataError(f"images need a size of at least 1 and 1 or 3 channels; got {size} and {channels}")
        pixel_limit()  # a wrong limit is one error, not one of every image
        self.shape = (channels, size, size)
        self.paths = list(paths)
        self.in_memory = len(paths) * channels * size * size <= cache_bytes
        """Whether the pixels are kept in memory, rather than decoded at every use."""
        self._mode: ResizeMode = resize_mode
        self._skip_option = skip_option
        reporter, count = reporter or Reporter(), len(paths)
        if self.in_memory or skip_bad:
            with reporter.progress("decoding images", count) as advance:
                pixels, bad = self._decode(range(count), advance, keep=self.in_memory)
        else:
            with reporter.progress("checking images", count) as advance:
                # Reading a header holds the GIL: more threads would only block each other.
                bad = map_collecting_errors(lambda row: image_size(self.paths[row]), count, 1, advance)
        kept = usable(bad, count, lambda row: str(self.paths[row]), skip_option if not skip_bad else None)
        self._pixels = torch.from_numpy(pixels[kept] if bad else pixels) if self.in_memory else None
        self.kept = torch.tensor(kept)
        """Positions of the usable images among the given paths."""
        self.paths = [self.paths[row] for row in kept]

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, indices: Tensor) -> Tensor:
        if self._pixels is not None:
            return self._pixels[indices]
        rows = indices.tolist()
        pixels, bad = self._decode(rows)
        usable(bad, len(rows), lambda row: str(self.paths[rows[row]]), self._skip_option)
        return torch.from_numpy(pixels)

    def _decode(
        self, rows: Sequence[int], advance: Advance = ignore, keep: bool = True
    ) -> tuple[Pixels, dict[int, str]]:
        """The pixels of some files, and for each that failed (its pixels are undefined) the reason."""
        channels, size, _ = self.shape
        pixels = np.empty((len(rows) if keep else 0, *self.shape), dtype=np.uint8)

        def decode(row: int) -> None:
            image = decode_image(self.paths[rows[row]], size, channels, self._mode)
            if keep:
                pixels[row] = image

        return pixels, map_collecting_errors(decode, len(rows), WORKERS, advance)


def usable(bad: Mapping[int, str], count: int, name: Callable[[int], str], option: str | None = None) -> list[int]:
    """The positions of the usable ones of ``count`` images, with one warning that names the bad ones.

    ``bad`` are the reasons by position. With the name of an ``option`` that skips bad images, they are an error.
    """
    if not bad:
        return list(range(count))
    named = some_named(bad, name)
    if option is not None:
        raise DataError(
            f"{len(bad)} of {count} images cannot be decoded: {named}. Repair or remove them, or skip them with "
            f"{option}."
        )
    if len(bad) == count:
        raise DataError(f"none of {count} images can be decoded: {named}")
    logger.warning("skipped %d of %d images: %s", len(bad), count, named)
    return [position for position in range(count) if position not in bad]


def some_named(bad: Mapping[int, str], name: Callable[[int], str]) -> str:
    """The first few bad images with their reasons, and how many more there are.

    >>> some_named({0: "empty", 7: "torn"}, "image {}".format)
    'image 0 (empty); image 7 (torn)'
    """
    named = "; ".join(f"{name(index)} ({reason})" for index, reason in list(bad.items())[:NAMED])
    return named + (f"; and {len(bad) - NAMED} more" if len(bad) > NAMED else "")


def map_collecting_errors(
    work: Callable[[int], object], count: int, workers: int, advance: Advance = ignore
) -> dict[int, str]:
    """Call ``work`` for every index below ``count`` in threads; returns the error messages by index."""
    failed: dict[int, str] = {}

    def attempt(index: int) -> None:
        try:
            work(index)
        except MemoryError:
            raise
        except Exception as error:  # image decoders raise nearly any exception on damaged files
            failed[index] = str(error) or type(error).__name__

    # Several indices per submitted task: submitting one costs as much as decoding a small image.
    tasks = [range(first, min(first + 16, count)) for first in range(0, count, 16)]
    pool = ThreadPoolExecutor(workers) if workers > 1 else None
    try:
        for indices, _ in zip(
            tasks, (pool.map if pool else map)(lambda task: [*map(attempt, task)], tasks), strict=True
        ):
            advance(step=len(indices))
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)  # an interrupted run must not wait for queued tasks
    return dict(sorted(failed.items()))
