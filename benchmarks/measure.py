"""How the benchmarks measure: the best of interleaved rounds, and extra memory seen by the allocator."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

Work = Callable[[], object]


class Ratio(NamedTuple):
    """One line of the table."""

    what: str
    baseline: str
    measured: str
    ratio: float
    goal: str


def best_times(works: list[Work], rounds: int) -> list[float]:
    """Best seconds of each piece of work, rounds interleaved so that all see the same machine."""
    best = [float("inf")] * len(works)
    for work in works:
        work()
    for _ in range(rounds):
        for index, work in enumerate(works):
            started = time.perf_counter()
            work()
            best[index] = min(best[index], time.perf_counter() - started)
    return best


def peak_extra_bytes(work: Work) -> int:
    """Most resident memory beyond the start while ``work`` runs, sampled every half millisecond."""
    work()
    start, peak, done = _resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, _resident() - start)
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        work()
    done.set()
    watcher.join()
    return peak


def _resident() -> int:
    with open("/proc/self/statm", encoding="utf-8") as file:  # noqa: PTH123  (called a thousand times a second)
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
