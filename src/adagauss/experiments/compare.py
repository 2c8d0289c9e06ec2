"""Tables that compare several methods and seeds under one protocol."""

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

PAPER_COLUMN = "paper A_last / A_inc"
OTHER_PROTOCOL = "other protocol"
COMPARED = tuple(metric for metric in METRICS if metric.compared)

Rows = Sequence[Mapping[str, str]]


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


def summarise(results: Sequence[Run]) -> dict[str, Spread]:
    """The metrics of a comparison table for the runs of one method, by title."""
    return {
        metric.title: Spread.of([result.metrics[metric.name] for result in results], metric.percent)
        for metric in COMPARED
    }


def comparison_rows(results: Results, as_published: bool = False) -> list[dict[str, str]]:
    """One row per method, the best first: metrics, the paper's numbers if comparable, and cost.

    ``as_published`` says that the runs follow a protocol of the paper without changes.
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


def caption(results: Results, *notes: str) -> str:
    """What a comparison table shows, and in which columns lower is better."""
    low = ", ".join(metric.title for metric in COMPARED if metric.better == "lower")
    return "; ".join([protocol_title(results), *notes, f"lower is better: {low}"])


def markdown(rows: Rows, caption: str = "") -> str:
    """Rows as a Markdown table."""
    header = list(rows[0])
    above = [f"*{caption}*", ""] if caption else []
    lines = [*above, _markdown_row(header), "|" + "---|" * len(header)]
    return "\n".join([*lines, *(_markdown_row(list(row.values())) for row in rows)]) + "\n"


def latex(rows: Rows, caption: str = "") -> str:
    """Rows as a LaTeX tabular, the caption as its last line."""
    header = list(rows[0])
    below = [f"\\multicolumn{{{len(header)}}}{{l}}{{{_latex_text(caption)}}} \\\\"] if caption else []
    above = [f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", "\\hline", _latex_row(header), "\\hline"]
    lines = [_latex_row(list(row.values())) for row in rows]
    return "\n".join([*above, *lines, "\\hline", *below, "\\end{tabular}", ""])


def comma_separated(rows: Rows, caption: str = "") -> str:
    """Rows as comma-separated values; the caption is a column."""
    rows = [{**row, "protocol": caption} for row in rows] if caption else rows
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Rows, str], str]] = {"md": markdown, "tex": latex, "csv": comma_separated}
"""Writers of rows, keyed by file extension."""


def _markdown_row(values: Sequence[str]) -> str:
    cells = (" ".join(value.split()).replace("|", "\\|") for value in values)
    return "| " + " | ".join(cells) + " |"


def _latex_row(values: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, values)) + " \\\\"


def _latex_text(text: str) -> str:
    escapes = {**{sign: f"\\{sign}" for sign in "_%&#${}"}, "\\": "\\textbackslash{}", "±": "$\\pm$"}
    return "".join(escapes.get(letter, letter) for letter in text)
