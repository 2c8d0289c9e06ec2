"""The one writer of tables, as Markdown, LaTeX or comma-separated values, and the table of a comparison."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from adagauss.experiments.metrics import METRICS
from adagauss.experiments.paper import published
from adagauss.experiments.run import Results, Run, protocol_title
from adagauss.methods import method_info

Rows = Sequence[Mapping[str, object]]
"""Cells by column. A row may lack columns; a float is written with ten digits."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float], percent: bool = True) -> Spread:
        """Of fractions in percent, or of plain numbers; a single run has no deviation."""
        shown = [100 * value if percent else value for value in values]
        return cls(statistics.fmean(shown), statistics.stdev(shown) if len(shown) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + (f" ± {self.deviation:.1f}" if self.deviation is not None else "")


def spaced(count: int, most: int) -> list[int]:
    """Positions 0..count-1; if there are more than ``most``, evenly spaced ones with the first and the last.

    >>> spaced(3, 5), spaced(10, 4)
    ([0, 1, 2], [0, 3, 6, 9])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def markdown(rows: Rows, caption: str = "") -> str:
    """Write rows as a Markdown table."""
    header, cells = _cells(rows)
    above = [f"*{caption}*", ""] if caption else []
    lines = [*above, _markdown_row(header), "|" + "---|" * len(header)]
    return "\n".join([*lines, *map(_markdown_row, cells)]) + "\n"


def latex(rows: Rows, caption: str = "") -> str:
    """Write rows as a LaTeX tabular, the caption as its last line."""
    header, cells = _cells(rows)
    below = [f"\\multicolumn{{{len(header)}}}{{l}}{{{_latex_text(caption)}}} \\\\"] if caption else []
    above = [f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", "\\hline", _latex_row(header), "\\hline"]
    return "\n".join([*above, *map(_latex_row, cells), "\\hline", *below, "\\end{tabular}", ""])


def comma_separated(rows: Rows, caption: str = "") -> str:
    """Write rows as comma-separated values; the caption is a column."""
    header, cells = _cells([{**row, "protocol": caption} for row in rows] if caption else rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *cells])
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Rows, str], str]] = {"md": markdown, "tex": latex, "csv": comma_separated}
"""Writers of rows, keyed by file extension."""


def _cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """The columns of all rows, and their texts; a missing cell is empty."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    return header, [[_text(row.get(key, "")) for key in header] for row in rows]


def _text(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _markdown_row(values: Sequence[str]) -> str:
    cells = (" ".join(value.split()).replace("|", "\\|") for value in values)
    return "| " + " | ".join(cells) + " |"


def _latex_row(values: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, values)) + " \\\\"


def _latex_text(text: str) -> str:
    escapes = {**{sign: f"\\{sign}" for sign in "_%&#${}"}, "\\": "\\textbackslash{}", "±": "$\\pm$"}
    return "".join(escapes.get(letter, letter) for letter in text)


# The comparison of several methods and seeds under one protocol.

PAPER_COLUMN = "paper A_last / A_inc"
OTHER_PROTOCOL = "other protocol"
COMPARED = tuple(metric for metric in METRICS if metric.compared)


def summarise(results: Sequence[Run]) -> dict[str, Spread]:
    """The metrics of a comparison table for the runs of one method, by title."""
    return {
        metric.title: Spread.of([result.metrics[metric.name] for result in results], metric.percent)
        for metric in COMPARED
    }


def comparison_rows(results: Results, as_published: bool = False) -> list[dict[str, str]]:
    """Tabulate one row per method, the best first: metrics, the paper's numbers if comparable, and cost.

    Args:
        results: runs by method.
        as_published: whether the runs follow a protocol of the paper without changes.
    """
    rows = []
    for name in sorted(results, key=lambda name: _rank(results[name])):
        runs = results[name]
        one = runs[0]
        protocol = one.protocol
        quoted = published(method_info(name).title, name, protocol.dataset, protocol.tasks, protocol.scale)
        paper = quoted if as_published else None
        rows.append(
            {
                "method": name,
                "runs": str(len(runs)),
                **{column: str(spread) for column, spread in summarise(runs).items()},
                PAPER_COLUMN: f"{paper.a_last} / {paper.a_inc}" if paper else OTHER_PROTOCOL,
                "training, min": f"{statistics.fmean(run.cost.training_seconds for run in runs) / 60:.1f}",
                "inference, images/s": f"{statistics.fmean(run.cost.images_per_second for run in runs):.0f}",
                "bytes per class": f"{one.cost.bytes_per_class:,}",
                "other state, MiB": f"{one.cost.other_state_bytes / 2**20:.1f}",
                "config": one.digest,
            }
        )
    return rows


def _rank(runs: Sequence[Run]) -> float:
    """Smaller is better, by the first metric."""
    first = COMPARED[0]
    value = statistics.fmean(run.metrics[first.name] for run in runs)
    return -value if first.better == "higher" else value


def comparison_caption(results: Results, *notes: str) -> str:
    """What a comparison table shows, and in which columns lower is better."""
    low = ", ".join(metric.title for metric in COMPARED if metric.better == "lower")
    return "; ".join([protocol_title(results), *notes, f"lower is better: {low}"])
