"""Make items: run what is missing, score what can be scored on finished networks, then write tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from adagauss.errors import AdagaussError
from adagauss.reproduce.cells import Job, Problem, Workshop, distinct, jobs
from adagauss.reproduce.drawing import draw
from adagauss.reproduce.findings import Found, findings
from adagauss.reproduce.plan import Item
from adagauss.reproduce.rescoring import rescore_missing
from adagauss.reproduce.tables import write_table
from adagauss.reproduce.working import Datasets, run_missing
from adagauss.utils.progress import Reporter


@dataclass(frozen=True)
class Produced:
    """An item as far as it could be made."""

    item: Item
    found: tuple[Found, ...]
    files: list[Path] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What could not be made, and why."""

    @property
    def failed(self) -> dict[str, Problem]:
        """Rows that went wrong, by benchmark and label."""
        return {
            f"{one.benchmark}, {label}": problem
            for one in self.found
            for label, problem in one.problems().items()
            if problem.kind == "failed"
        }


def produce(
    items: Sequence[Item],
    shop: Workshop,
    reporter: Reporter | None = None,
    executor: Executor | None = None,
    most: int | None = None,
    *,
    run: bool = True,
) -> list[Produced]:
    """Make items, continuing where an earlier call stopped; runs are made here or through an executor.

    Without ``run`` they are made of what is finished.
    """
    reporter = reporter or Reporter()
    datasets = Datasets(shop.options)
    wanted = jobs(items, shop)
    if run:
        run_missing(distinct(wanted), datasets, reporter, executor, most)
    rescore_missing(wanted, shop, datasets, reporter)
    made = []
    with reporter.progress("tables and figures", len(items)) as advance:
        for item in items:
            own = [job for job in wanted if job.item is item]
            made.append(_made(item, own, shop, datasets, reporter))
            advance(item.name)
    return made


def _made(item: Item, own: Sequence[Job], shop: Workshop, datasets: Datasets, reporter: Reporter) -> Produced:
    command = f"adagauss reproduce {item.name} --scale {shop.scale.name}"
    found = findings(own, shop)
    files, remarks = write_table(item, found, shop, command), []
    for one in found:
        try:
            drawn, missing = draw(one, shop, datasets, reporter, command)
        except AdagaussError as error:
            drawn, missing = [], str(error)
        files += drawn
        remarks += [f"{one.benchmark}: no figure ({missing})"] if missing else []
    # Read once more: the claims look at what was drawn just now.
    return Produced(item, tuple(findings(own, shop)), files, remarks)
