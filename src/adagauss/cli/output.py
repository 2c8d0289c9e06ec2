"""Output of the commands: width of the terminal, tables of plain text, and the message after Ctrl-C."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.cells import cell_len

from adagauss.utils.progress import clipped, escape_control_chars

if TYPE_CHECKING:
    from rich.table import Table

    from adagauss.analysis.tables import Rows
    from adagauss.experiments.run import Results, Run

NOTHING_CHANGED = "nothing was changed"
EXIT_CODE = 130


class Stopped(Exception):  # noqa: N818  # not an error
    """The user stopped a command; the message tells what is stored and how to resume."""


@contextmanager
def stoppable(stored: str | Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C into a `Stopped` with this message, or with the message that this function returns.

    Commands change files only in this context. Elsewhere `adagauss.cli.main` reports that nothing was changed.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(stored if isinstance(stored, str) else stored()) from None


@contextmanager
def drawing(stored: str) -> Iterator[None]:
    """Draw figures after the results are saved: an error becomes a warning, and the command succeeds."""
    try:
        with stoppable(f"only figures are missing: {stored}"):
            yield
    except Stopped:
        raise
    except Exception as error:  # a full disk, a font, a damaged file: none of them is a failure of the run
        warn(f"no figures ({getattr(error, 'strerror', None) or str(error) or type(error).__name__}); {stored}")


def say(*lines: str, error: bool = False, colour: str | None = None) -> None:
    """Print lines with control characters escaped; line ends within them stay."""
    for line in lines:
        typer.secho("\n".join(map(escape_control_chars, line.split("\n"))), err=error, fg=colour)


def warn(text: str, colour: str = "yellow") -> None:
    """Print a warning, or an error in red, on the error stream."""
    say(f"adagauss: {text}", error=True, colour=colour)


def labelled(label: str, text: str, indent: int | None = None, *, error: bool = False) -> None:
    """Print a text after its label, folded to the width of the terminal; words are not broken."""
    import textwrap

    folded = textwrap.fill(
        escape_control_chars(text),
        width(),
        initial_indent=label,
        subsequent_indent=" " * (len(label) if indent is None else indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
    say(folded, error=error)


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
    """A table whose cells wrap on a narrow terminal; columns in ``numbers`` are right-aligned and do not wrap."""
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


def column_lines(heads: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> list[str]:
    """Plain lines in columns, without a frame; the widest columns are truncated to fit the terminal."""
    cells = [[clipped(cell, LONGEST) for cell in row] for row in ([heads, *rows] if heads else rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + 2 * (len(widths) - 1) > width() and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in cells:
        texts = [clipped(cell, room) for cell, room in zip(row, widths, strict=True)]
        fills = [" " * (room - cell_len(text)) for text, room in zip(texts, widths, strict=True)]
        padded = [f"{fills[i]}{texts[i]}" if i in right else f"{texts[i]}{fills[i]}" for i in range(len(row))]
        lines.append("  ".join(padded).rstrip())
    return lines


def first_lines(lines: Sequence[str], most: int, more: str = "more") -> list[str]:
    """The first lines, and the number of the others.

    >>> first_lines(["a", "b", "c"], 2)
    ['a', '... and 2 more']
    """
    return [*lines] if len(lines) <= most else [*lines[: most - 1], f"... and {len(lines) - most + 1} {more}"]


def counted(count: int, one: str, many: str = "") -> str:
    """A count with its unit.

    >>> counted(1, "class", "classes"), counted(2, "image")
    ('1 class', '2 images')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


MOST_ROWS = 20
MEANING = (
    "A_last: accuracy on all seen classes after the last task, every task weighted\n"
    "equally; A_inc: its mean over the tasks"
)


def run_table(result: Run) -> Table:
    """One run task by task: accuracy on all seen classes, and on the classes of the task when learned and finally."""
    from adagauss.data.images import evenly_spaced

    matrix = result.matrix
    chosen = evenly_spaced(len(matrix), MOST_ROWS).tolist()
    heads = ("task", "classes", "all seen classes", "accuracy when learned", "final accuracy")
    rows = [
        (
            task + 1,
            result.protocol.tasks[task],
            _percent(result.curve[task]),
            _percent(matrix[task][task]),
            _percent(matrix[-1][task]),
        )
        for task in chosen
    ]
    return table(f"{result.title}; accuracy after each task, %", heads, rows, numbers=heads)


def comparison_table(rows: Rows, results: Results) -> Table:
    """Metrics of the compared methods, with the numbers of the paper where the protocol is the same."""
    from adagauss.analysis.tables import COMPARED, OTHER_PROTOCOL, PAPER_COLUMN

    shown = ["method", "runs", *(metric.title for metric in COMPARED), "training, min"]  # the files have more columns
    if any(row[PAPER_COLUMN] != OTHER_PROTOCOL for row in rows):
        shown.insert(-1, PAPER_COLUMN)
    cells = [[row[column] for column in shown] for row in rows]
    return table(f"{next(iter(results.values()))[0].protocol.title}, %", shown, cells, numbers=shown[1:])


def show_results(results: Results, of: Run) -> None:
    """Print the table of finished runs, and one of these runs task by task."""
    from adagauss.analysis.tables import comparison_rows

    show(run_table(of), comparison_table(comparison_rows(results), results))
    typer.echo(MEANING)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
