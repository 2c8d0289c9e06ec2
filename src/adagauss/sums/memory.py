"""Whether sums fit into memory, asked before anything is computed."""

from __future__ import annotations

from collections.abc import Callable

from adagauss.errors import ConfigError
from adagauss.sums.packed import packed_numbers

NUMBER = 8
"""Bytes of a float64 number."""


def needed_bytes(width: int, classes: int, rows: int = 0) -> int:
    """Memory that a task takes at its peak with ``width`` features.

    The sums before and after it (the old ones stay until the task is done) and one factor of them, all packed, in the
    worst case in float64; a column for each class in the sums before and after, the right-hand side and W; and
    ``rows`` of features that judge, as they are, shifted and multiplied by the inverse of the factor.
    """
    return NUMBER * (3 * packed_numbers(width) + 4 * width * classes + 3 * width * rows)


def widest(classes: int, available: int, rows: int = 0) -> int:
    """The largest number of features whose sums take at most ``available`` bytes."""
    low, high = 0, 1
    while needed_bytes(high, classes, rows) <= available:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed_bytes(middle, classes, rows) <= available else (low, middle)
    return low


def check_fits(width: int, classes: int, available: int | None, setting: Callable[[int], str], rows: int = 0) -> None:
    """Refuse sums that do not fit into the memory ``available``; None is unknown, and nothing is refused.

    ``setting`` says what to set for at most so many features.
    """
    needed = needed_bytes(width, classes, rows)
    if available is None or needed <= available:
        return
    need, have = (f"{number / 2**30:.1f} GiB" for number in (needed, available))
    raise ConfigError(
        f"sums over {width} features and {classes} classes take {need} of memory, and {have} are available: "
        f"{setting(max(1, widest(classes, available, rows)))} would fit"
    )
