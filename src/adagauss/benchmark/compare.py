"""Several methods and seeds under one protocol, and the tables that come of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adagauss.benchmark.folder import RunFolder

COLUMNS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "A_last": lambda result: result["a_last"]["task_mean"],
    "A_inc": lambda result: result["a_inc"]["task_mean"],
    "forgetting": lambda result: result["forgetting"],
    "plasticity": lambda result: result["plasticity"],
}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds, in percent."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """From fractions; a single run has no deviation."""
        percent = [100 * value for value in values]
        return cls(statistics.fmean(percent), statistics.stdev(percent) if len(percent) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + (f" ± {self.deviation:.1f}" if self.deviation is not None else "")


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, Spread]:
    """The columns of a comparison table for the runs of one method."""
    return {name: Spread.of([column(result) for result in results]) for name, column in COLUMNS.items()}


def markdown_table(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """One line a method, over its runs."""
    lines = [
        "| method | runs | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    for name, results in rows.items():
        cells = " | ".join(str(spread) for spread in summarise(results).values())
        lines.append(f"| {name} | {len(results)} | {cells} |")
    return "\n".join(lines)


def read_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The metrics of finished run folders."""
    return [RunFolder(path).read_json("metrics.json") for path in paths]
