"""Results as tables on the terminal, each within 80 columns."""

from __future__ import annotations

import typer
from rich.table import Table

from adagauss.analysis.replay import Replay, mean_log_det
from adagauss.analysis.replay import summarise as summarise_replays
from adagauss.cli import terminal
from adagauss.experiments.compare import COMPARED, OTHER_PROTOCOL, PAPER_COLUMN, Rows, summarise
from adagauss.experiments.run import Results, Run, protocol_title

SHOWN = ("method", "runs", "A_last", "A_inc", "forgetting", "training, min")
"""Columns that fit into a narrow terminal; the files contain all columns."""
MOST_TASKS = 6
"""Columns of tasks that fit beside the longest name of a method."""
MOST_ROWS = 20
MEANING = (
    "A_last: accuracy on all seen classes after the last task, every task weighted\n"
    "equally; A_inc: its mean over the tasks"
)


def accuracy_table(results: Results) -> Table:
    """Accuracy over all seen classes after each task, mean over seeds."""
    tasks = len(next(iter(results.values()))[0].protocol.tasks)
    chosen = spaced(tasks, MOST_TASKS)
    heads = ["method", *(f"task {task + 1}" for task in chosen)]
    rows = []
    for name, runs in results.items():
        curves = [run.curve for run in runs]
        means = [sum(values) / len(values) for values in zip(*curves, strict=True)]
        rows.append([name, *(_percent(means[task]) for task in chosen)])
    title = f"{protocol_title(results)}: accuracy on all seen classes after each task, %"
    return terminal.table(title, heads, rows, numbers=heads[1:])


def run_table(result: Run) -> Table:
    """One run task by task: accuracy on all seen classes, and on the task's own classes then and at the end."""
    matrix = result.matrix
    chosen = spaced(len(matrix), MOST_ROWS)
    heads = ("task", "classes", "on all seen", "on it, then", "on it, at the end")
    rows = [
        (
            task + 1,
            result.protocol.tasks[task],
            _percent(result.curve[task]),
            _percent(matrix[task][task]),
            _percent(matrix[-1][task]),
        )
        for task in chosen
    ]
    return terminal.table(f"{result.title}; accuracy after each task, %", heads, rows, numbers=heads)


def summary_table(results: Results) -> Table:
    """The metrics of each method over its seeds."""
    heads = ["method", "seeds", *(metric.title for metric in COMPARED)]
    rows = [(name, len(runs), *summarise(runs).values()) for name, runs in results.items()]
    several = any(len(runs) > 1 for runs in results.values())
    title = f"{protocol_title(results)}: % over all tasks" + (" (mean ± deviation over seeds)" if several else "")
    return terminal.table(title, heads, rows, numbers=heads[1:])


def comparison_table(rows: Rows, results: Results) -> Table:
    """The table of a comparison."""
    shown = [column for column in rows[0] if column in SHOWN or any(row[column] != OTHER_PROTOCOL for row in rows)]
    shown = [column for column in shown if column in (*SHOWN, PAPER_COLUMN)]
    cells = [[row[column] for column in shown] for row in rows]
    return terminal.table(f"{protocol_title(results)}, %", shown, cells, numbers=shown[1:])


def replay_table(results: list[Replay], run: Run) -> Table:
    """A_last / A_inc of drifts (down) with classifiers (across)."""
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    title = f"{run.protocol.title}: {run.method} replayed{seeds}, A_last / A_inc, %"
    cells = summarise_replays(results)
    heads = ["drift", *(f"classifier {kind}" for kind in next(iter(cells.values()))), "log-determinant, task 1"]
    rows = [(drift, *by_kind.values(), mean_log_det(results, drift)) for drift, by_kind in cells.items()]
    return terminal.table(title, heads, rows)


def show(results: Results, of: Run) -> None:
    """Print the tables of finished runs; one of them task by task."""
    curves = [accuracy_table(results)] if len(results) > 1 else []
    terminal.show(*curves, run_table(of), summary_table(results))
    typer.echo(MEANING)


def spaced(count: int, most: int) -> list[int]:
    """Positions 0..count-1, or if they are too many, evenly spaced ones with the first and the last.

    >>> spaced(3, 5), spaced(10, 4)
    ([0, 1, 2], [0, 3, 6, 9])
    """
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
