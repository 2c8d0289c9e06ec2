"""What items need and how much of it is there, before anything is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from adagauss.experiments.run import RunResult
from adagauss.reproduce.cells import Cell, Job, Problem, Workshop, distinct, jobs
from adagauss.reproduce.estimate import RESCORED, Estimate
from adagauss.reproduce.findings import findings
from adagauss.reproduce.plan import Item


@dataclass(frozen=True)
class Needs:
    """What one item, or several together, still need."""

    runs: int
    finished: int
    rescored: int
    """Rows and seeds that are scored on finished networks."""
    minutes: float
    """That the rest takes, about."""


@dataclass(frozen=True)
class Overview:
    """What every item needs by itself, and all of them together: shared runs count once."""

    items: dict[str, Needs]
    together: Needs
    unavailable: dict[str, list[str]]
    """Reasons why something cannot be run here, and the items concerned, with how many of their runs."""


def overview(items: Sequence[Item], shop: Workshop) -> Overview:
    """Look at what is there; nothing is run."""
    wanted = jobs(items, shop)
    estimate = Estimate(distinct(wanted))
    own = {item.name: [job for job in wanted if job.item is item] for item in items}
    needs = {name: _needs(found, shop, estimate) for name, found in own.items()}
    unavailable: dict[str, list[str]] = {}
    for name, found in own.items():
        reasons = Counter(job.cell.reason for job in found if isinstance(job.cell, Problem))
        for reason, count in reasons.items():
            unavailable.setdefault(reason, []).append(f"{name} ({count} of {len(found)})")
    return Overview(needs, _needs(wanted, shop, estimate), unavailable)


def _needs(own: Sequence[Job], shop: Workshop, estimate: Estimate) -> Needs:
    cells = distinct(own)
    waiting = [cell for cell in cells if not isinstance(cell.result(), RunResult)]
    minutes = sum(estimate.minutes(cell.config) * _left(cell) for cell in waiting)
    scored = [job for job in own if job.row.replay is not None and isinstance(job.cell, Cell)]
    done = {
        (one.item.name, one.benchmark, label, score.seed)
        for one in findings(scored, shop)
        for label in one.outcomes
        for score in one.scores(label)
    }
    each = [estimate.minutes(job.cell.config) for job in scored if isinstance(job.cell, Cell)]
    if each:
        minutes += RESCORED * sum(each) * (1 - len(done) / len(scored))
    return Needs(len(cells), len(cells) - len(waiting), len(scored), minutes)


def _left(cell: Cell) -> float:
    """Share of the tasks that are not learned yet."""
    return 1 - cell.folder.finished_tasks() / max(1, cell.config.stream.tasks)
