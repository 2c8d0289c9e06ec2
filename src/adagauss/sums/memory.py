"""Whether sums fit into memory, asked before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adagauss.errors import ConfigError
from adagauss.sums.packed import packed_numbers

NUMBER = 8
"""Bytes of a float64 number."""
COLUMNS, SCORES = 9, 10
"""Matrices with a column for each class that are there at once: of features, and of scores of images that judge."""


def needed_bytes(width: int, classes: int, rows: int = 0) -> int:
    """Memory that a task takes at its peak with ``width`` features.

    The sums before and after it (the old ones stay until the task is done) and one factor of them, all packed, in the
    worst case in float64; columns for each class in the sums before and after, and in all steps that refine W; and
    ``rows`` of features that judge, as they are, shifted and multiplied by the inverse of the factor, with the scores
    that rules give them.
    """
    return NUMBER * (3 * packed_numbers(width) + COLUMNS * width * classes + rows * (3 * width + SCORES * classes))


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
    if available is not None and needed > available:
        raise _refusal(f"{width} features", classes, needed, available, setting, widest(classes, available, rows))


def check_groups_fit(
    groups: Sequence[int], classes: int, available: int | None, setting: Callable[[int], str], rows: int = 0
) -> None:
    """As `check_fits`, for sums over groups of features, each for itself; ``setting`` takes whole groups only."""
    each = needed_bytes(max(groups), classes, rows)
    needed = each * len(groups)
    if available is not None and needed > available:
        what = f"{len(groups)} groups of {max(groups)} features"
        raise _refusal(what, classes, needed, available, setting, available // each * max(groups))


def _refusal(
    what: str, classes: int, needed: int, available: int, setting: Callable[[int], str], most: int
) -> ConfigError:
    advice = f"{setting(most)} would fit" if most else "free some memory, or teach fewer classes"
    return ConfigError(
        f"sums over {what} and {classes} classes take {_amount(needed)} of memory, and {_amount(available)} are "
        f"available: {advice}"
    )


def _amount(number: int) -> str:
    """Bytes as a person reads them."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"
