"""The same work on many files, in threads, collecting the failures instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from adagauss.progress import Advance, ignore

_TASK = 16


def failures(work: Callable[[int], object], count: int, workers: int, advance: Advance = ignore) -> dict[int, str]:
    """Do the work for every index below ``count``; returns the reason of each failure by index."""

    def attempt(indices: range) -> dict[int, str]:
        found = {index: _reason(work, index) for index in indices}
        return {index: reason for index, reason in found.items() if reason is not None}

    # Several indices per submitted task: submitting one costs as much as decoding a small image.
    tasks = [range(first, min(first + _TASK, count)) for first in range(0, count, _TASK)]
    if workers == 1:
        return _collected(tasks, map(attempt, tasks), advance)
    pool = ThreadPoolExecutor(workers)
    try:
        return _collected(tasks, pool.map(attempt, tasks), advance)
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupted run must not wait for what is still queued


def _collected(tasks: Iterable[range], found: Iterable[dict[int, str]], advance: Advance) -> dict[int, str]:
    failed: dict[int, str] = {}
    for indices, reasons in zip(tasks, found, strict=True):
        failed |= reasons
        advance(step=len(indices))
    return failed


def _reason(work: Callable[[int], object], index: int) -> str | None:
    try:
        work(index)
    except MemoryError:
        raise
    except Exception as error:  # image decoders raise nearly any exception on damaged files
        return str(error) or type(error).__name__
    return None
