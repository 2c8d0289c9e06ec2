"""Several methods and seeds under one protocol, and the tables that come of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adagauss.benchmark.published import published
from adagauss.methods import method_info

Result = Mapping[str, Any]
Results = Mapping[str, Sequence[Result]]

PAPER_COLUMN = "paper A_last / A_inc"
OTHER_PROTOCOL = "other protocol"
COLUMNS: dict[str, Callable[[Result], float]] = {
    "A_last": lambda result: float(result["a_last"]["task_mean"]),
    "A_inc": lambda result: float(result["a_inc"]["task_mean"]),
    "forgetting": lambda result: float(result["forgetting"]),
    "plasticity": lambda result: float(result["plasticity"]),
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


def protocol_title(protocol: Mapping[str, Any]) -> str:
    """What was learned, and a warning where it was made small for a CPU.

    >>> protocol_title({"dataset": "digits", "tasks": [2, 2], "scale": "cpu"})
    'digits, 2 tasks, CPU scale (compare such numbers with each other only)'
    >>> protocol_title({"dataset": "cifar100", "tasks": [50, 10, 10, 10, 10, 10], "scale": "paper"})
    'cifar100, 50 classes first, then 5 tasks'
    """
    sizes = protocol["tasks"]
    warm = len(sizes) > 1 and sizes[0] >= 2 * sizes[1]
    tasks = f"{sizes[0]} classes first, then {len(sizes) - 1} tasks" if warm else f"{len(sizes)} tasks"
    small = ", CPU scale (compare such numbers with each other only)" if protocol["scale"] == "cpu" else ""
    return f"{protocol['dataset']}, {tasks}{small}"


def summarise(results: Sequence[Result]) -> dict[str, Spread]:
    """The accuracy columns of a comparison table for the runs of one method."""
    return {name: Spread.of([column(result) for result in results]) for name, column in COLUMNS.items()}


def comparison_rows(results: Results, as_published: bool = False) -> list[dict[str, str]]:
    """One row a method, best A_last first: accuracy, the paper's numbers where comparable, and cost.

    ``as_published`` says that the runs are a protocol of the paper with nothing changed.
    """
    rows = []
    for name, runs in sorted(results.items(), key=lambda item: -summarise(item[1])["A_last"].mean):
        one = runs[0]
        protocol = one["protocol"]
        quoted = published(method_info(name).title, name, protocol["dataset"], protocol["tasks"], protocol["scale"])
        paper = quoted if as_published else None
        seconds = [sum(value for stage, value in run["seconds"].items() if stage != "evaluation") for run in runs]
        rows.append(
            {
                "method": name,
                "runs": str(len(runs)),
                **{column: str(spread) for column, spread in summarise(runs).items()},
                PAPER_COLUMN: f"{paper.a_last} / {paper.a_inc}" if paper else OTHER_PROTOCOL,
                "training, min": f"{statistics.fmean(seconds) / 60:.1f}",
                "inference, images/s": f"{statistics.fmean(run['images_per_second'] for run in runs):.0f}",
                "bytes a class": f"{one['bytes_per_class']:,}",
                "other state, MiB": f"{one['other_state_bytes'] / 2**20:.1f}",
                "config": one["config"],
            }
        )
    return rows


def markdown(rows: Sequence[Mapping[str, str]], caption: str = "") -> str:
    """Rows as a Markdown table."""
    header = list(rows[0])
    above = [f"*{caption}*", ""] if caption else []
    lines = [*above, "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row.values()) + " |" for row in rows)]) + "\n"


def latex(rows: Sequence[Mapping[str, str]], caption: str = "") -> str:
    """Rows as a LaTeX tabular, the caption as its last line."""
    header = list(rows[0])
    below = [f"\\multicolumn{{{len(header)}}}{{l}}{{{_latex_text(caption)}}} \\\\"] if caption else []
    above = [f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", "\\hline", _latex_row(header), "\\hline"]
    lines = [_latex_row(list(row.values())) for row in rows]
    return "\n".join([*above, *lines, "\\hline", *below, "\\end{tabular}", ""])


def csv(rows: Sequence[Mapping[str, str]], caption: str = "") -> str:
    """Rows as comma-separated values, every value quoted; the caption is a column."""
    rows = [{**row, "protocol": caption} for row in rows] if caption else rows
    quoted = [[f'"{value}"' for value in line] for line in (list(rows[0]), *(list(row.values()) for row in rows))]
    return "\n".join(",".join(line) for line in quoted) + "\n"


def _latex_row(values: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, values)) + " \\\\"


def _latex_text(text: str) -> str:
    escapes = {**{sign: f"\\{sign}" for sign in "_%&#${}"}, "\\": "\\textbackslash{}", "±": "$\\pm$"}
    return "".join(escapes.get(letter, letter) for letter in text)
