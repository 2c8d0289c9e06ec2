"""The one writer of tables, as Markdown, LaTeX or comma-separated values, and the table of a comparison."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from adagauss.experiments.config import SHARED_RECIPE
from adagauss.experiments.metrics import METRICS, Metric, metrics
from adagauss.experiments.paper import published
from adagauss.experiments.run import Groups, Run
from adagauss.methods import method_info
from adagauss.utils.files import write_atomically

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


def markdown(rows: Rows, caption: str = "") -> str:
    """Write rows as a Markdown table."""
    header, cells = _cells(rows)
    above = [f"*{caption}*", ""] if caption else []
    lines = [*above, _markdown_row(header), "|" + "---|" * len(header)]
    return "\n".join([*lines, *map(_markdown_row, cells)]) + "\n"


LEFT_OUT = ("benchmark", "row", "seeds", "recipe of", "note", "paper ")
"""Starts of the columns that a LaTeX table with a group of columns per benchmark does not have."""


def latex(rows: Rows, caption: str = "") -> str:
    """Write rows as a LaTeX table for the package booktabs: the best of each metric is bold, the second underlined.

    If rows have a benchmark, each row label gets one line with a group of columns per benchmark, without the paper's
    numbers. The caption is a comment.
    """
    lines: dict[str, dict[tuple[str, str], str]] = {}
    for number, row in enumerate(rows):
        benchmark = str(row.get("benchmark", ""))
        line = lines.setdefault(str(row.get("row")) if benchmark else str(number), {})
        if benchmark:
            line["", "method"] = str(row.get("row"))
        for column, value in row.items():
            if not benchmark or not column.startswith(LEFT_OUT):
                line[benchmark, column] = _text(value)
    columns = list(dict.fromkeys(key for line in lines.values() for key in line))
    cells = [[_latex_column(key, line.get(key, ""), lines.values()) for key in columns] for line in lines.values()]
    body = [[_latex_text(column) for _, column in columns], *cells]
    header, *below = (" & ".join(row) + " \\\\" for row in body)
    comment = [f"% {line}" for line in (*caption.splitlines(), "needs \\usepackage{booktabs}")]
    start = f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}"
    end = ["\\bottomrule", "\\end{tabular}", ""]
    return "\n".join([*comment, start, "\\toprule", *_benchmark_header(columns), header, "\\midrule", *below, *end])


def _benchmark_header(columns: Sequence[tuple[str, str]]) -> list[str]:
    """The names of the benchmarks above their columns; nothing if the columns have none."""
    counts = Counter(benchmark for benchmark, _ in columns)
    if list(counts) == [""]:
        return []
    names = [f"\\multicolumn{{{count}}}{{c}}{{{_latex_text(name)}}}" if name else "" for name, count in counts.items()]
    ends = list(accumulate(counts.values()))
    rules = [
        f"\\cmidrule(lr){{{end - count + 1}-{end}}}"
        for end, (name, count) in zip(ends, counts.items(), strict=True)
        if name
    ]
    return [" & ".join(names) + " \\\\", " ".join(rules)]


def _latex_column(key: tuple[str, str], text: str, lines: Iterable[Mapping[tuple[str, str], str]]) -> str:
    """A cell, marked if it is the best or the second of its column."""
    mean, _, deviation = text.partition(" ± ")
    cell = _latex_text(mean)
    better = next((metric.better for metric in metrics() if metric.title == key[1]), None)
    if better is not None and (value := _number(text)) is not None:
        values = {number for line in lines if (number := _number(line.get(key, ""))) is not None}
        ranked = sorted(values, reverse=better == "higher")
        if len(ranked) > 1 and value in ranked[:2]:
            cell = f"\\{('textbf', 'underline')[ranked.index(value)]}{{{cell}}}"
    return cell + (f" {{\\scriptsize$\\pm${_latex_text(deviation)}}}" if deviation else "")


def _number(text: str) -> float | None:
    try:
        number = float(text.partition(" ± ")[0])
    except ValueError:
        return None
    return None if math.isnan(number) else number


def comma_separated(rows: Rows, caption: str = "") -> str:
    """Write rows as comma-separated values; the caption is a column."""
    header, cells = _cells([{**row, "protocol": caption} for row in rows] if caption else rows)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *cells])
    return text.getvalue()


FORMATS: Mapping[str, Callable[[Rows, str], str]] = {"md": markdown, "tex": latex, "csv": comma_separated}
"""Writers of rows, keyed by file extension."""


def write_tables(folder: Path, rows: Rows, caption: str) -> list[Path]:
    """Write rows as ``table.md``, ``table.tex`` and ``table.csv``."""
    for ending, text in FORMATS.items():
        write_atomically(folder / f"table.{ending}", text(rows, caption).encode("utf-8", "backslashreplace"))
    return [folder / f"table.{ending}" for ending in FORMATS]


def _cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """The columns of all rows, and their texts; a missing cell is empty."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    return header, [[_text(row.get(key, "")) for key in header] for row in rows]


def _text(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _markdown_row(values: Sequence[str]) -> str:
    cells = (" ".join(value.split()).replace("|", "\\|") for value in values)
    return "| " + " | ".join(cells) + " |"


LATEX = {
    **{sign: f"\\{sign}" for sign in "_%&#${}"},
    "\\": "\\textbackslash{}",
    "±": "$\\pm$",
    **{letter: f"$\\{name}$" for letter, name in zip("βγλμΣ", ("beta", "gamma", "lambda", "mu", "Sigma"), strict=True)},
}
"""Signs that LaTeX reads as commands, or lacks."""


def _latex_text(text: str) -> str:
    plain = "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))
    return re.sub(r"\b([AL])\\_(last|inc|AC)\b", r"$\1_\\mathrm{\2}$", plain)


# The comparison of several methods and seeds under one protocol.

PAPER_COLUMN = "paper A_last / A_inc"
OTHER_PROTOCOL = "other protocol"


def compared_metrics(unequal: bool = False) -> list[Metric]:
    """The metrics of comparisons.

    If tasks are unequal, also those per image: the published code of most methods weights test images equally.
    """
    return [one for one in metrics() if one.compared or (unequal and one.name.endswith("_pooled"))]


def whose_recipe(run: Run) -> str:
    """Whose training settings a run has: those that its method names, or those that all methods share."""
    return "all methods" if SHARED_RECIPE in run.origins.values() else method_info(run.method).recipe


def comparison_rows(results: Groups) -> list[dict[str, str]]:
    """Tabulate one row per method, the best first: metrics, the paper's numbers if comparable, and cost."""
    rows = []
    best = METRICS[0].name
    unequal = len(set(next(iter(results.values()))[0].sizes)) > 1
    compared = compared_metrics(unequal)
    for name in sorted(results, key=lambda name: -statistics.fmean(run.metrics[best] for run in results[name])):
        runs = results[name]
        cost, paper = runs[0].cost, published(runs[0])
        rows.append(
            {
                "method": name,
                "runs": str(len(runs)),
                "recipe of": whose_recipe(runs[0]),
                **{one.title: str(Spread.of([run.metrics[one.name] for run in runs], one.percent)) for one in compared},
                PAPER_COLUMN: f"{paper.a_last} / {paper.a_inc}" if paper else OTHER_PROTOCOL,
                "training, min": f"{statistics.fmean(run.cost.training_seconds for run in runs) / 60:.1f}",
                "inference, images/s": f"{statistics.fmean(run.cost.images_per_second for run in runs):.0f}",
                "bytes per class": f"{cost.bytes_per_class:,}",
                "other state, MiB": f"{cost.other_state_bytes / 2**20:.1f}",
                "config": runs[0].digest,
            }
        )
    return rows


def comparison_caption(results: Groups, *notes: str) -> str:
    """What a comparison table shows, and in which columns lower is better."""
    low = ", ".join(metric.title for metric in compared_metrics() if metric.better == "lower")
    return "; ".join([next(iter(results.values()))[0].protocol, *notes, f"lower is better: {low}"])
