"""Output of the commands: lines, tables of plain text, and the message after Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import typer

from adagauss.utils.progress import clipped, escape_control_chars

if TYPE_CHECKING:
    from adagauss.core.predictor import Prediction
    from adagauss.experiments.run import Groups

NOTHING_CHANGED = "nothing was changed"
EXIT_CODE = 130


class Stopped(Exception):  # noqa: N818  # not an error
    """The user stopped a command; the message is on what is stored and how to resume."""


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


def confirmed(question: str) -> bool | None:
    """Ask a question on the terminal; None if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    typer.echo(f"{escape_control_chars(question)} [y/N] ", nl=False, err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def labelled(label: str, text: str, indent: int, *, error: bool = False) -> None:
    """Print a text after its label, folded to the width of the terminal; words are not broken."""
    fold = textwrap.TextWrapper(width(), label, " " * indent, break_long_words=False, break_on_hyphens=False)
    say(fold.fill(escape_control_chars(text)), error=error)


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


def table(
    heads: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = (), wrap: bool = False
) -> list[str]:
    """Lines of a table without a frame, as wide as the terminal; columns in ``right`` are aligned to the right.

    Text that does not fit is truncated, or continues in further lines with ``wrap``. The cell of None is empty.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, show_header=any(heads))
    for index, head in enumerate(heads):
        made.add_column(
            Text(escape_control_chars(head)),
            justify="right" if index in right else "left",
            no_wrap=index in right,
            overflow="fold" if wrap else "ellipsis",
        )
    for row in rows:
        cells = ("" if cell is None else cell for cell in row)
        texts = (escape_control_chars(cell) if wrap else clipped(cell, LONGEST) for cell in cells)
        made.add_row(*(Text(text, no_wrap=not wrap) for text in texts))
    console = Console(width=width(), color_system=None)
    with console.capture() as lines:
        console.print(made)
    return [line.rstrip() for line in lines.get().splitlines()]


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


UNKNOWN = "unknown"
FORMULA = ("=", "+", "-", "@")
"""First characters with which spreadsheets take a cell for a formula."""


def json_lines(predictions: Sequence[Prediction], *, flag_unknown: bool) -> Iterator[str]:
    """One object per image; names are exact, with everything that is not plain ASCII escaped.

    With ``flag_unknown``, each has the field ``unknown``. An unknown image has neither class nor probability.
    """
    for one in predictions:
        is_unknown = one.label is None
        facts = {
            "image": one.name,
            "class": one.label,
            "probability": None if is_unknown else round(one.probability, 6),
            **({"unknown": is_unknown} if flag_unknown else {}),
            "top": [{"class": label, "probability": round(share, 6)} for label, share in one.top],
        }
        yield json.dumps(facts)


def _ranked(one: Prediction) -> list[tuple[Any, float | None]]:
    """Classes and probabilities as they are shown: for an unknown image, the most likely classes follow."""
    return [*one.top] if one.label is not None else [(UNKNOWN, None), *one.top[:-1]]


def csv_lines(predictions: Sequence[Prediction], *, heading: bool) -> list[str]:
    """One line per image, with ``--top`` in further columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if heading:
        more = (f"{name}_{rank + 1}" for rank in range(1, len(predictions[0].top)) for name in ("class", "probability"))
        writer.writerow(["image", "class", "probability", *more])
    for one in predictions:
        ranked = ((label, "" if share is None else f"{share:.6f}") for label, share in _ranked(one))
        writer.writerow(map(_csv_cell, [one.name, *chain(*ranked)]))
    return text.getvalue().splitlines()


def _csv_cell(value: object) -> str:
    """A text without control characters, which a spreadsheet does not take for a formula."""
    text = escape_control_chars(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(FORMULA) else text


def prediction_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Image, class and probability in columns; the name of the image only in its first line."""
    room = (width() - 12) // 2  # as much as the class, so that the end of a path stays
    rows = [
        ("" if rank else clipped(one.name, room, keep_end=True), label, "" if share is None else f"{100 * share:.1f} %")
        for one in predictions
        for rank, (label, share) in enumerate(_ranked(one))
    ]
    return table(("", "", ""), rows, right=(2,))


MOST_TASKS = 20
MEANING = (
    "A_last: accuracy on all seen classes after the last task, every task weighted equally; A_inc: its mean over the "
    "tasks"
)


def show_results(results: Groups) -> None:
    """Print the metrics of all methods, next to the paper's of the same protocol; of one method, also each task."""
    from adagauss.analysis.tables import OTHER_PROTOCOL, PAPER_COLUMN, compared_metrics, comparison_rows
    from adagauss.data.images import evenly_spaced

    run, rows = next(iter(results.values()))[0], comparison_rows(results)
    if len(results) == 1:
        heads = ("task", "classes", "all seen classes", "accuracy when learned", "final accuracy")
        matrix, sizes = run.matrix, run.sizes
        tasks = []
        for task in evenly_spaced(len(matrix), MOST_TASKS).tolist():
            shares = (run.curve[task], matrix[task][task], matrix[-1][task])
            tasks.append((task + 1, sizes[task], *(f"{100 * share:.1f}" for share in shares)))
        say(f"{run.title}; accuracy after each task, %", *table(heads, tasks, right=range(5)), "")
    titles = [metric.title for metric in compared_metrics(unequal=True) if metric.title in rows[0]]
    shown = ["method", "runs", *titles, "training, min"]  # the files have more columns
    if any(row[PAPER_COLUMN] != OTHER_PROTOCOL for row in rows):
        shown.insert(-1, PAPER_COLUMN)
    cells = [[row[column] for column in shown] for row in rows]
    say(f"{run.protocol}, %", *table(shown, cells, right=range(1, len(shown)), wrap=True), "")
    labelled("", MEANING, 0)
