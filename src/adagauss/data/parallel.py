"""The same work on many files, in threads, collecting the failures instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
"""Wraps an iteration over images to show how far it is: called with the iterable and their number."""

_TASK = 16


def failures(work: Callable[[int], object], count: int, workers: int, progress: Progress) -> dict[int, str]:
    """Do the work for every index below ``count``; the reasons of those that failed, by index."""

    def attempt(indices: range) -> list[str | None]:
        return [_reason(work, index) for index in indices]

    # Several indices a task: handing out a task costs as much as decoding a small image.
    tasks = [range(first, min(first + _TASK, count)) for first in range(0, count, _TASK)]
    if workers == 1:
        return _failed(progress(chain.from_iterable(map(attempt, tasks)), count))
    pool = ThreadPoolExecutor(workers)
    try:
        return _failed(progress(chain.from_iterable(pool.map(attempt, tasks)), count))
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupted run must not wait for what is still queued


def show_progress(items: Iterable[Any], total: int) -> Iterator[Any]:
    """A progress bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    hidden = not console.is_terminal
    yield from track(items, "Decoding images", total, console=console, transient=True, disable=hidden)


def no_progress(items: Iterable[Any], total: int) -> Iterable[Any]:
    """Show nothing: for work too short to watch."""
    return items


def _failed(reasons: Iterable[str | None]) -> dict[int, str]:
    return {index: reason for index, reason in enumerate(reasons) if reason is not None}


def _reason(work: Callable[[int], object], index: int) -> str | None:
    try:
        work(index)
    except MemoryError:
        raise
    except Exception as error:  # image decoders raise nearly anything on damaged files
        return str(error) or type(error).__name__
    return None
