"""The numbers of an item, read from finished cells and scores; nothing is run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adagauss.errors import AdagaussError
from adagauss.reproduce.cells import Cell, Job, Problem, Workshop
from adagauss.reproduce.plan import SCALES, Item, Row, Where
from adagauss.reproduce.rescoring import read_rescored, rescored_file
from adagauss.runs.environment import ENVIRONMENT, code_name
from adagauss.runs.published import paper_row
from adagauss.runs.results import RunResult
from adagauss.utils.files import read_text


@dataclass(frozen=True)
class Score:
    """The accuracy of one row with one seed, in percent."""

    seed: int
    a_last: float
    a_inc: float
    run: RunResult | None
    """The run itself; None if only parts were scored on its networks."""

    def quantity(self, name: str) -> float | None:
        """A number of the paper's tables by its name there."""
        if name in ("a_last", "a_inc"):
            return float(getattr(self, name))
        if self.run is None:
            return None
        cost = self.run.cost
        return {"training_min": cost.training_seconds / 60, "inference_sec": cost.seconds["evaluation"]}[name]


Outcome = Score | Problem


@dataclass(frozen=True)
class Found:
    """What there is of an item on one benchmark."""

    item: Item
    where: Where
    benchmark: str
    """Name of the protocol at this scale."""
    dataset: str
    tasks: int
    """Of the paper's benchmark, T as the paper counts: without the first task if that has half of the classes."""
    outcomes: Mapping[str, Sequence[Outcome]]
    """Of every seed, by row."""
    cells: Mapping[str, Sequence[Cell]]
    """Finished runs whose own parts are those of the row."""
    drawn: Sequence[Mapping[str, str]] = field(default_factory=tuple)

    def scores(self, label: str) -> list[Score]:
        return [outcome for outcome in self.outcomes.get(label, ()) if isinstance(outcome, Score)]

    def problems(self) -> dict[str, Problem]:
        """The first problem of every row that has one."""
        firsts = {
            label: next((outcome for outcome in outcomes if isinstance(outcome, Problem)), None)
            for label, outcomes in self.outcomes.items()
        }
        return {label: problem for label, problem in firsts.items() if problem is not None}

    def values(self, label: str, quantity: str) -> dict[int, float]:
        """A quantity by seed."""
        found = {score.seed: score.quantity(quantity) for score in self.scores(label)}
        return {seed: value for seed, value in found.items() if value is not None}

    def figure(self) -> Sequence[Mapping[str, str]]:
        return self.drawn

    def features(self) -> float | None:
        sizes = [cell.config.method.backbone.features for cells in self.cells.values() for cell in cells]
        return sizes[0] if sizes else None

    def code(self) -> str:
        """Version and digest of the code that made the runs."""
        begun = [cell.folder.read_json_or_nothing(ENVIRONMENT) for cells in self.cells.values() for cell in cells]
        found = sorted({f"adagauss {code_name(one)}" for one in begun})
        return "; ".join(found) if found else "no finished runs"

    def quoted(self, label: str) -> dict[str, Any] | None:
        """The row of the paper's table."""
        row = next(row for row in self.item.rows if row.label == label)
        return paper_row(self.item.table, self.dataset, self.tasks, row.paper)

    def printed(self, label: str, quantity: str) -> float | None:
        quoted = self.quoted(label)
        value = quoted.get(quantity) if quoted else None
        return None if value is None else float(value)


def findings(found: Iterable[Job], shop: Workshop) -> list[Found]:
    """What there is of items, benchmark by benchmark."""
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in found:
        groups.setdefault((job.item.name, job.where.protocol), []).append(job)
    return [_found(group, shop) for group in groups.values()]


def _found(group: Sequence[Job], shop: Workshop) -> Found:
    first = group[0]
    outcomes: dict[str, list[Outcome]] = {}
    cells: dict[str, list[Cell]] = {}
    for job in group:
        outcomes.setdefault(job.row.label, []).append(_outcome(job, shop))
        if isinstance(job.cell, Cell) and job.row.replay is None and isinstance(job.cell.result(), RunResult):
            cells.setdefault(job.row.label, []).append(job.cell)
    protocol, printed = shop.scale.find(first.where.protocol), SCALES["paper"].find(first.where.protocol).stream
    tasks = printed.tasks - 1 if printed.first else printed.tasks
    place = figure_file(shop, first.item, first.where)
    return Found(first.item, first.where, protocol.name, printed.dataset, tasks, outcomes, cells, read_rows(place))


def figure_file(shop: Workshop, item: Item, where: Where, ending: str = "csv") -> Path:
    """Where the study of an item puts its figure, or the numbers in it."""
    return shop.place(item) / where.protocol / f"{item.study or item.name}.{ending}"


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if there is no such file."""
    if not path.exists():
        return []
    return list(csv.DictReader(io.StringIO(read_text(path))))


def _outcome(job: Job, shop: Workshop) -> Outcome:
    cell = job.cell
    if isinstance(cell, Problem):
        return cell
    result = cell.result()
    if isinstance(result, Problem):
        return result
    if job.row.replay is None:
        return Score(job.seed, 100 * result.metrics["a_last"], 100 * result.metrics["a_inc"], result)
    return _rescored(job.row, job.seed, cell, shop)


def _rescored(row: Row, seed: int, cell: Cell, shop: Workshop) -> Outcome:
    try:
        file = rescored_file(shop, cell, row.replay or {})
    except AdagaussError as error:
        return Problem("failed", str(error))
    scored = read_rescored(file, shop)
    return scored if isinstance(scored, Problem) else Score(seed, 100 * scored.a_last, 100 * scored.a_inc, None)
