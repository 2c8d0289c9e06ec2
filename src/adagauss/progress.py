"""Progress through one reporter: silent in a library, bars on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

NOTE_WIDTH = 100
"""Narrower terminals show no losses beside the bars."""

Advance = Callable[[str], None]


class Reporter:
    """Says nothing; the base of reporters that do."""

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """A piece of work of ``total`` steps; call the yielded function after each, with a word on its state."""
        yield lambda note: None

    def message(self, text: str) -> None:
        """A line the user should see."""


class TerminalReporter(Reporter):
    """Bars for whatever is under way, nested pieces below each other; finished bars vanish."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            *([TextColumn("[dim]{task.fields[note]}")] if console.width >= NOTE_WIDTH else []),
            console=console,
            transient=True,
        )
        self._open = 0

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        if not self._console.is_terminal:
            with self._lines(title, total) as advance:
                yield advance
            return
        bar = self._bars.add_task(title, total=total, note="")
        if self._open == 0:
            self._bars.start()
        self._open += 1
        try:
            yield lambda note: self._bars.update(bar, advance=1, note=note)
        finally:
            self._open -= 1
            self._bars.remove_task(bar)
            if self._open == 0:
                self._bars.stop()

    @contextmanager
    def _lines(self, title: str, total: int) -> Iterator[Advance]:
        """Where there is no terminal, the outermost piece of work says a line a step."""
        done, outermost = 0, self._open == 0
        self._open += 1

        def advance(note: str) -> None:
            nonlocal done
            done += 1
            if outermost:
                self._console.print(f"{title}: {done}/{total} {note}", highlight=False, markup=False)

        try:
            yield advance
        finally:
            self._open -= 1

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False)
