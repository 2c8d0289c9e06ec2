"""Progress reporters (silent, bars, or lines in a pipe) and text that is safe to show on a terminal."""

from __future__ import annotations

import importlib.util
import math
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table


NOTE_WIDTH = 100
"""Narrower terminals show no losses next to the bars."""
WORTH_A_LINE = 2.0
"""Seconds that work must last before a line in a pipe reports it."""
BETWEEN_LINES = 5.0
BETWEEN_TABLES = 60.0
ROW_NAME, ROW_NOTE = 40, 200
"""Columns of a terminal that the names and notes of a table take at most."""
BYTES = "bytes"


class Advance(Protocol):
    """Reports a finished step, or a fraction of one, with a note on the state."""

    def __call__(self, note: str = "", step: float = 1.0) -> None: ...


@dataclass(frozen=True)
class TableRow:
    """The state of one of many jobs."""

    name: str
    state: str
    note: str = ""


class Show(Protocol):
    """Shows the current state of jobs, the most interesting first, below a summary."""

    def __call__(self, summary: str, rows: Sequence[TableRow]) -> None: ...


class Reporter:
    """Reports nothing; the base of other reporters."""

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "") -> Iterator[Advance]:
        """Work of ``total`` steps; call the yielded function after each step.

        A step may be reported in fractions: training counts epochs and advances by ``step=1 / batches``. Calls may be
        nested. An empty note keeps the previous one. The unit is empty or ``bytes``.
        """
        yield ignore

    @contextmanager
    def table(self) -> Iterator[Show]:
        """Many jobs at once; call the yielded function whenever something may have changed."""
        yield lambda summary, rows: None

    def message(self, text: str) -> None:
        """Show a line to the user."""


def ignore(note: str = "", step: float = 1.0) -> None:
    """An `Advance` that reports nothing."""


def reporter_for(console: Console) -> Reporter:
    """Bars if the console is a terminal, or a notebook that can redraw them (ipywidgets); else lines."""
    redraws = importlib.util.find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    return BarReporter(console) if redraws else LineReporter(console)


@dataclass
class Work:
    """Work in progress."""

    title: str
    total: float
    unit: str
    started: float
    done: float = 0.0
    note: str = ""

    def advance(self, note: str, step: float) -> None:
        """Advance by a step."""
        self.done += step
        self.note = note or self.note

    @property
    def finished(self) -> bool:
        return self.done > self.total - 1e-6

    @property
    def count(self) -> str:
        """Finished whole steps and their total.

        >>> Work("images", 1_281_167, "", 0.0, done=0.1 + 0.2 + 0.7).count
        '1/1281167'
        """
        if self.unit == BYTES:
            return f"{self.done / 1e6:.1f}/{self.total / 1e6:.1f} MB"
        return f"{math.floor(self.done + 1e-6)}/{self.total:.0f}"

    def __str__(self) -> str:
        return f"{self.title}: {self.count} {self.note}".rstrip()


class BarReporter(Reporter):
    """Bars for all work in progress, nested work below; finished bars disappear."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = _bars(console)
        self._open = 0

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "") -> Iterator[Advance]:
        work = Work(title, total, unit, started=0.0)
        if self._open == 0:
            self._bars = _bars(self._console)  # in a notebook, bars that have vanished cannot be shown again
        bar = self._bars.add_task(title, total=total, note="", count=work.count)

        def advance(note: str = "", step: float = 1.0) -> None:
            work.advance(note, step)
            self._bars.update(bar, completed=work.done, note=work.note, count=work.count)

        if self._open == 0:
            self._bars.start()
        self._open += 1
        try:
            yield advance
        finally:
            self._open -= 1
            self._bars.remove_task(bar)
            if self._open == 0:
                self._bars.stop()

    @contextmanager
    def table(self) -> Iterator[Show]:
        from rich.live import Live

        with Live(console=self._console, transient=True, auto_refresh=False) as live:

            def show(summary: str, rows: Sequence[TableRow]) -> None:
                # A frame, a head and the summary take lines as well; what scrolls away cannot be redrawn.
                live.update(_table(summary, rows[: max(1, self._console.height - 6)]), refresh=True)

            yield show

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)


def _bars(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        TextColumn("{task.fields[count]}", style="progress.download", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        *([TextColumn("{task.fields[note]}", style="dim", markup=False)] if console.width >= NOTE_WIDTH else []),
        console=console,
        transient=True,
    )


def _table(summary: str, rows: Sequence[TableRow]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(title=Text(summary), title_justify="left", expand=True)
    names = [clipped(row.name, ROW_NAME) for row in rows]
    made.add_column("run", no_wrap=True, min_width=max(map(columns, names), default=0))
    made.add_column("state", no_wrap=True, min_width=max((len(row.state) for row in rows), default=0))
    made.add_column("now", no_wrap=True, overflow="ellipsis", ratio=1)  # what is left of the line
    for name, row in zip(names, rows, strict=True):
        made.add_row(Text(name), Text(row.state), Text(clipped(row.note, ROW_NOTE)))
    return made


class LineReporter(Reporter):
    """A line every few seconds on all work in progress that has lasted a while, and one when it is done."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._open: list[Work] = []
        self._spoke = -math.inf

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "") -> Iterator[Advance]:
        work = Work(title, total, unit, self._clock())
        self._open.append(work)

        def advance(note: str = "", step: float = 1.0) -> None:
            work.advance(note, step)
            self._tell(ended=work is self._open[0] and work.finished)

        try:
            yield advance
        finally:
            self._open.remove(work)

    @contextmanager
    def table(self) -> Iterator[Show]:
        states: dict[str, str] = {}

        def show(summary: str, rows: Sequence[TableRow]) -> None:
            for row in rows:
                if states.get(row.name) != row.state:
                    states[row.name] = row.state
                    self.message(f"{row.name}: {row.state} {row.note}".rstrip())
            if self._clock() - self._spoke >= BETWEEN_TABLES:
                self.message(summary)
                self._spoke = self._clock()

        yield show

    def _tell(self, ended: bool) -> None:
        now = self._clock()
        lasted = now - self._open[0].started
        if lasted >= WORTH_A_LINE and (ended or now - self._spoke >= BETWEEN_LINES):
            self.message(" | ".join(map(str, self._open)))
            self._spoke = now

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


HARMLESS_FORMATS = frozenset("\u200c\u200d")
"""Joiners: part of Persian words and of composed emoji, without effect on the text around them."""


def escape_control_chars(name: object) -> str:
    r"""Escape every character that is not printable.

    Control characters and escape sequences, line ends, marks that change the direction of text, and bytes that are not
    UTF-8 (a file name holds them as surrogates) could move the cursor, colour the rest of a terminal, or end the
    program with an encoding error.

    >>> [escape_control_chars(name) for name in ("robin", "a\x1b[31mb\n", "caf\udce9", "\u202egpj.exe")]
    ['robin', 'a\\x1b[31mb\\n', 'caf\\xe9', '\\u202egpj.exe']
    """
    return "".join(map(_escaped, str(name)))


def clipped(name: object, width: int, *, keep_end: bool = False) -> str:
    """Escape and truncate a name to ``width`` columns of a terminal; ``keep_end`` keeps the end, as for paths.

    >>> clipped("Black-footed Albatross", 10), clipped("photos/birds/7.jpg", 10, keep_end=True)
    ('Black-foo…', '…rds/7.jpg')
    """
    # Cut a name of megabytes before the loop over letters; some letters take no column.
    text = str(name)
    shown = escape_control_chars(text[-4 * width :] if keep_end else text[: 4 * width])
    if len(text) <= 4 * width and columns(shown) <= width:
        return shown
    letters = list(reversed(shown)) if keep_end else list(shown)
    kept, used = [], 1
    for letter in letters:
        used += columns(letter)
        if used > width:
            break
        kept.append(letter)
    return "…" + "".join(reversed(kept)) if keep_end else "".join(kept) + "…"


def columns(text: str) -> int:
    """Width of a text in terminal columns: two for a wide letter, none for a combining mark.

    >>> columns("wren"), columns("鳥"), columns("e\u0301")
    (4, 2, 1)
    """
    return sum(_columns_of(letter) for letter in text)


def _columns_of(letter: str) -> int:
    if unicodedata.combining(letter) or letter in HARMLESS_FORMATS:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _escaped(letter: str) -> str:
    if 0xDC80 <= ord(letter) <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp") and letter not in HARMLESS_FORMATS
    return letter.encode("unicode_escape").decode("ascii") if hidden else letter
