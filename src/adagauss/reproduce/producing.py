"""Make items: run what is missing, score what can be scored on finished networks, then write tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adagauss.progress import Reporter
from adagauss.reproduce.cells import Job, Problem, Workshop, distinct, jobs
from adagauss.reproduce.drawing import pictured, studied
from adagauss.reproduce.findings import Found, findings
from adagauss.reproduce.plan import Item
from adagauss.reproduce.rescoring import rescore_missing
from adagauss.reproduce.tables import write_table
from adagauss.reproduce.working import Datasets, Problems, run_missing


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


def produce(items: Sequence[Item], shop: Workshop, reporter: Reporter | None = None) -> list[Produced]:
    """Make items, continuing where an earlier call stopped."""
    reporter = reporter or Reporter()
    datasets = Datasets(shop.options)
    wanted = jobs(items, shop)
    problems = dict(run_missing(distinct(wanted), datasets, reporter))
    problems |= rescore_missing(wanted, shop, datasets, reporter)
    made = []
    with reporter.progress("tables and figures", len(items)) as advance:
        for item in items:
            own = [job for job in wanted if job.item is item]
            made.append(_made(item, own, shop, problems, datasets, reporter))
            advance(item.name)
    return made


def _made(
    item: Item, own: Sequence[Job], shop: Workshop, problems: Problems, datasets: Datasets, reporter: Reporter
) -> Produced:
    command = f"adagauss reproduce {item.name} --scale {shop.scale.name}"
    found = findings(own, shop, problems)
    files, remarks = write_table(item, found, shop, command), []
    for one in found:
        if not any(one.scores(label) for label in one.outcomes):
            continue
        if item.study is None:
            picture = pictured(one, shop, command)
            files += [picture] if picture else []
        elif (drawn := studied(one, item.study, shop, datasets, reporter, command)) is not None:
            files += drawn.files.values()
            remarks += [f"{one.benchmark}: {drawn.missing}"] if drawn.missing else []
    # Read once more: the claims look at what was drawn just now.
    return Produced(item, tuple(findings(own, shop, problems)), files, remarks)
