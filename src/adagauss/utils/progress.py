"""Progress reporters (silent, bars, or lines in a pipe) and text that is safe to show on a terminal."""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len

if TYPE_CHECKING:
    from rich.console import Console


NOTE_WIDTH = 100
"""Narrower terminals show no losses next to the bars."""
MIN_SECONDS = 2.0
"""Lines are written only for work that takes longer."""


class Advance(Protocol):
    """Reports a finished step, or a fraction of one, with a note on the state."""

    def __call__(self, note: str = "", step: float = 1.0) -> None: ...


class Reporter:
    """Reports nothing; the base of other reporters."""

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        """Report work of ``total`` steps; call the yielded function after each step.

        A step may be reported in fractions: training counts epochs and advances by ``step=1 / batches``. Calls may be
        nested. An empty note keeps the previous one.
        """
        yield ignore

    def message(self, text: str) -> None:
        """Show a line to the user."""


def ignore(note: str = "", step: float = 1.0) -> None:
    """An `Advance` that reports nothing."""


def reporter_for(quiet: bool = False, console: Console | None = None) -> Reporter:
    """Create a reporter: bars if the console (default: the error stream) is a terminal, else lines; silent if quiet."""
    from rich.console import Console

    if quiet:
        return Reporter()
    console = console or Console(stderr=True)
    return BarReporter(console) if console.is_terminal and not console.is_jupyter else LineReporter(console)


class BarReporter(Reporter):
    """Shows a bar for all work in progress, nested work below; finished bars disappear."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            *([TextColumn("{task.fields[note]}", style="dim", markup=False)] if console.width >= NOTE_WIDTH else []),
            console=console,
            transient=True,
        )

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        self._bars.start()  # without effect if it has started
        bar = self._bars.add_task(title, total=total, note="")

        def advance(note: str = "", step: float = 1.0) -> None:
            self._bars.advance(bar, step)
            if note:
                self._bars.update(bar, note=note)

        try:
            yield advance
        finally:
            self._bars.remove_task(bar)
            if not self._bars.tasks:
                self._bars.stop()

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)


@dataclass
class Work:
    """Work in progress.

    >>> str(Work("images", 1_281_167, done=0.1 + 0.2 + 0.7))
    'images: 1/1281167'
    """

    title: str
    total: float
    done: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        return f"{self.title}: {math.floor(self.done + 1e-6)}/{self.total:.0f} {self.note}".rstrip()


class LineReporter(Reporter):
    """Writes a line on all work in progress for each 10 % of it; none in the first seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._open: list[Work] = []
        self._started = 0.0
        self._tenths = 0

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        work = Work(title, total)
        if not self._open:
            self._started, self._tenths = self._clock(), 0
        self._open.append(work)

        def advance(note: str = "", step: float = 1.0) -> None:
            work.done += step
            work.note = note or work.note
            share = 0.0
            for one in reversed(self._open):  # inner work is part of the next step of the outer one
                share = (one.done + min(share, 0.999)) / max(one.total, 1e-9)
            tenths = math.floor(10 * share + 1e-6)
            if tenths > self._tenths and self._clock() - self._started >= MIN_SECONDS:
                self._tenths = tenths
                self.message(" | ".join(map(str, self._open)))

        try:
            yield advance
        finally:
            self._open.remove(work)

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


HARMLESS_FORMATS = frozenset("\u200c\u200d")
"""Joiners: parts of Persian words and of composed emoji, which do not change the text around them."""


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
    if len(text) <= 4 * width and cell_len(shown) <= width:
        return shown
    used = accumulate(map(cell_len, reversed(shown) if keep_end else shown), initial=1)
    count = sum(columns <= width for columns in used) - 1
    return "…" + shown[len(shown) - count :] if keep_end else shown[:count] + "…"


def _escaped(letter: str) -> str:
    if 0xDC80 <= ord(letter) <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{ord(letter) - 0xDC00:02x}"
    hidden = unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp") and letter not in HARMLESS_FORMATS
    return letter.encode("unicode_escape").decode("ascii") if hidden else letter
