"""The terminal: its width, and tables whose cells are plain text, never markup."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from adagauss.utils.progress import clipped, columns, escape_control_chars

if TYPE_CHECKING:
    from rich.table import Table

UNFOLDED = 10_000
"""Line width if the output goes to a file or a pipe: unbroken lines suit `grep`."""
NARROWEST = 60
LONGEST = 120
"""Columns of one cell; longer names are cut."""


def width() -> int:
    """Columns of the terminal (or of the variable COLUMNS); in a pipe without one, lines are not broken."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return max(shutil.get_terminal_size().columns, NARROWEST)
    return UNFOLDED


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Sequence[str] = ()) -> Table:
    """A table that a narrow terminal breaks inside its cells; columns named in ``numbers`` stand right, unbroken."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(escape_control_chars(title)) if title else None, title_justify="left")
    for head in heads:
        right = head in numbers
        made.add_column(
            Text(escape_control_chars(head)), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(clipped(cell, LONGEST)) for cell in row))
    return made


def show(*tables: Table) -> None:
    """Print tables on standard output."""
    from rich.console import Console

    console = Console(width=min(width(), 160))
    for one in tables:
        console.print(one)


def lines(heads: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> list[str]:
    """Plain lines in columns, without a frame; what does not fit is cut at the end of the widest column."""
    cells = [[escape_control_chars(cell) for cell in row] for row in [heads, *rows]]
    widths = [max(columns(row[place]) for row in cells) for place in range(len(heads))]
    spare = width() - sum(widths) - 2 * (len(widths) - 1)
    while spare < 0 and max(widths) > 8:
        widest = widths.index(max(widths))
        second = max([8, *(size for place, size in enumerate(widths) if place != widest)])
        cut = min(-spare, max(1, widths[widest] - second))
        widths[widest] -= cut
        spare += cut
    return ["  ".join(_padded(row, widths, right)).rstrip() for row in cells]


def _padded(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> Iterator[str]:
    for place, (cell, room) in enumerate(zip(row, widths, strict=True)):
        text = clipped(cell, room)
        fill = " " * (room - columns(text))
        yield fill + text if place in right else text + fill


def folded(start: str, text: str, indent: int | None = None) -> str:
    """Text behind a start, its further lines indented, without broken words."""
    import textwrap

    return textwrap.fill(
        text,
        width(),
        initial_indent=start,
        subsequent_indent=" " * (len(start) if indent is None else indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def counted(count: int, one: str, many: str = "") -> str:
    """A number and what it counts.

    >>> counted(1, "class", "classes"), counted(2, "image")
    ('1 class', '2 images')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"
