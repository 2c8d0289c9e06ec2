"""Cells one after another in this process, or many at once through an executor; the rest goes on if one fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

from adagauss.data.dataset import Dataset, ReadOptions
from adagauss.data.fingerprint import fingerprints
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, WorkerError
from adagauss.experiments.cells import Cell, Orders, Outcome, attempt, data_of, digests_of, work
from adagauss.experiments.session import session, status
from adagauss.utils.progress import Reporter, TableRow

ATTEMPTS = 2
"""How often a cell is begun whose worker dies: the second time it continues where it was."""
BETWEEN_LOOKS = 0.5
WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"
REMEDY = (
    "it was killed, or the memory is full, or its machine is gone; run fewer cells at once (--jobs): the same command "
    "goes on from here"
)
INTEREST = (RUNNING, FAILED, DONE, WAITING)

Then = Callable[[Cell, Outcome], Cell | None]
"""Called with each outcome; returns a cell to run next, if there is one."""


def run_cells(
    cells: Iterable[Cell],
    out: Path,
    dataset: Dataset | None = None,
    *,
    then: Then | None = None,
    total: int | None = None,
    executor: Executor | None = None,
    most: int | None = None,
    options: ReadOptions | None = None,
    reader: Callable[[StreamConfig], Dataset] | None = None,
    reporter: Reporter | None = None,
    title: str = "runs",
) -> list[tuple[Cell, Outcome]]:
    """Run cells, and what ``then`` lets follow; outcomes in the order in which they came.

    Args:
        cells: taken one by one, when there is room.
        out: a folder that all workers see, for their sessions.
        dataset: the data of all cells. None if cells have several datasets: each is then read by ``reader`` or with
            ``options``. Workers read data for themselves, and must find those that this process finds.
        then: called with each outcome in this process.
        total: number of cells, if ``cells`` does not know it.
        executor: who runs them; None runs one after another here.
        most: how many are handed to the executor at a time; None hands over all.
        options: how the data are read, by workers, or here if there is no ``reader``.
        reader: reads the data of a cell in this process.
        reporter: shows progress: a table of cells if there is an executor, else bars of the one that runs.
        title: what they are together.
    """
    reporter = reporter or Reporter()
    count_of = total if total is not None else len(cells) if isinstance(cells, list) else None
    follow = then or (lambda cell, outcome: None)

    def data(cell: Cell) -> Dataset:
        if dataset is not None:
            return dataset
        return reader(cell.config.stream) if reader is not None else data_of(cell, options)

    if executor is None:
        return list(_one_by_one(cells, data, follow, count_of, reporter, title))
    with session(out) as folder:
        common = Orders.of(folder, options)

        def digests(cell: Cell) -> Mapping[str, str]:
            here = dataset is not None or reader is not None
            return fingerprints(data(cell)) if here else digests_of(cell, common.options)

        orders = _orders(common, digests, reporter)
        crew = _Crew(executor, folder, orders, follow, reporter, iter(cells), count_of, title)
        try:
            return crew.run(most)
        finally:
            crew.cancel()


def _orders(
    common: Orders, digests: Callable[[Cell], Mapping[str, str]], reporter: Reporter
) -> Callable[[Cell], Orders]:
    """Orders for each cell, with the fingerprints of its data; every dataset is looked at once."""
    known: dict[tuple[object, ...], Orders] = {}

    def of(cell: Cell) -> Orders:
        stream = cell.config.stream
        what = stream.dataset, stream.image_size, stream.skip_bad_images
        if what not in known:
            known[what] = common
            try:
                known[what] = replace(common, fingerprints=digests(cell))
            except (AdagaussError, OSError) as error:  # a worker may have data that are not here
                reporter.message(f"{stream.dataset} cannot be read here, so what workers read is not compared: {error}")
        return known[what]

    return of


def _one_by_one(
    cells: Iterable[Cell],
    data: Callable[[Cell], Dataset],
    then: Then,
    total: int | None,
    reporter: Reporter,
    title: str,
) -> Iterator[tuple[Cell, Outcome]]:
    with reporter.progress(title, total or 1) as advance:
        for first in cells:
            cell = first
            while True:
                outcome = attempt(cell, partial(data, cell), reporter)
                yield cell, outcome
                following = then(cell, outcome)
                if following is None:
                    break
                cell = following
            advance(f"{cell.name} {summary(outcome) if outcome.result else FAILED}")


def summary(outcome: Outcome) -> str:
    """An outcome in a few words."""
    if outcome.result is None:
        return str(outcome.failure)
    return f"{100 * outcome.result.details.accuracy[-1]:.1f} %"


@dataclass
class _Crew:
    """The cells that an executor has, and those that wait."""

    executor: Executor
    session: Path
    orders: Callable[[Cell], Orders]
    then: Then
    reporter: Reporter
    source: Iterator[Cell]
    total: int | None
    title: str
    next_cells: list[tuple[Cell, int]] = field(default_factory=list)
    """Cells to go on with, and how often they were begun."""
    pending: dict[Future[Outcome], tuple[Cell, int, int]] = field(default_factory=dict)
    """Each with its number and how often it was begun."""
    numbers: Iterator[int] = field(default_factory=count)
    outcomes: list[tuple[Cell, Outcome]] = field(default_factory=list)
    rows: dict[str, TableRow] = field(default_factory=dict)

    def run(self, most: int | None) -> list[tuple[Cell, Outcome]]:
        with self.reporter.table() as show:
            while self._fill(most):
                ended, _ = wait(self.pending, timeout=BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._end(future)
                self._look()
                show(self._summary(), sorted(self.rows.values(), key=lambda row: INTEREST.index(row.state)))
        return self.outcomes

    def cancel(self) -> None:
        """Take back what has not begun; what has begun ends when the session does."""
        for future in self.pending:
            future.cancel()

    def _fill(self, most: int | None) -> bool:
        """Hand over as many cells as there is room for; whether any are under way."""
        while most is None or len(self.pending) < most:
            if self.next_cells:
                cell, begun = self.next_cells.pop(0)
            elif (fresh := next(self.source, None)) is not None:
                cell, begun = fresh, 0
            else:
                break
            number, orders = next(self.numbers), self.orders(cell)
            try:
                # Workers may have another current folder.
                theirs = replace(cell, folder=cell.folder.absolute())
                future: Future[Outcome] = self.executor.submit(work, theirs, number, orders)
            except Exception as error:  # engines raise errors of their own if they are gone
                future = Future()
                future.set_exception(error)
            self.pending[future] = cell, number, begun + 1
            self.rows[cell.name] = TableRow(cell.name, WAITING)
        return bool(self.pending)

    def _end(self, future: Future[Outcome]) -> None:
        cell, _, begun = self.pending.pop(future)
        try:
            outcome = future.result()
        except Exception as error:  # our own errors are values: this is the engine's
            if begun < ATTEMPTS:
                self.reporter.message(f"{cell.name}: {_death(error)}; it is begun again where it was")
                self.next_cells.append((cell, begun))
                return
            outcome = Outcome(failure=WorkerError(f"{_death(error)}, {begun} times: {REMEDY}"))
        if outcome.abandoned:  # this process was stopped for so long that its workers gave up
            self.next_cells.append((cell, begun - 1))
            return
        for message in outcome.messages:
            self.reporter.message(f"{cell.name}: {message}")
        self.rows[cell.name] = TableRow(cell.name, DONE if outcome.result else FAILED, summary(outcome))
        self.outcomes.append((cell, outcome))
        following = self.then(cell, outcome)
        if following is not None:
            self.next_cells.append((following, 0))

    def _look(self) -> None:
        for cell, number, _ in self.pending.values():
            if found := status(self.session, number):
                self.rows[cell.name] = TableRow(
                    cell.name, RUNNING, f"{found.get('now')} ({found.get('where')})".strip()
                )

    def _summary(self) -> str:
        states = Counter(row.state for row in self.rows.values())
        known = [f"{states[state]} {state}" for state in (RUNNING, DONE, FAILED) if states[state]]
        left = (self.total or len(self.rows)) - sum(states[state] for state in (RUNNING, DONE, FAILED))
        return f"{self.title}: " + ", ".join([*known, *([f"{left} {WAITING}"] if left > 0 else [])])


def _death(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"its worker ended ({type(error).__name__}{': ' + lines[0][:200] if lines else ''})"
