"""Results as tables on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from adagauss.analysis.replay import Replay, mean_log_det
from adagauss.analysis.replay import summarise as summarise_replays
from adagauss.runs.compare import COMPARED, OTHER_PROTOCOL, PAPER_COLUMN, Rows, summarise
from adagauss.runs.results import Results, RunResult, protocol_title

SHOWN = ("method", "runs", "A_last", "A_inc", "forgetting", "training, min")
"""Columns that fit into a narrow terminal; the files contain all columns."""


def accuracy_table(results: Results) -> Table:
    """Accuracy over all seen classes after each task, mean over seeds."""
    title = f"{protocol_title(results)}: accuracy on all seen classes, % (task mean)"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    tasks = len(next(iter(results.values()))[0].protocol.tasks)
    for task in range(tasks):
        table.add_column(f"task {task + 1}", justify="right")
    for name, runs in results.items():
        curves = [run.details.accuracy for run in runs]
        table.add_row(name, *(f"{100 * sum(values) / len(values):.1f}" for values in zip(*curves, strict=True)))
    return table


def matrix_table(result: RunResult) -> Table:
    """The accuracy matrix of one run."""
    run = f"accuracy matrix of {result.method}, seed {result.seed}, %, row after task, column on task"
    table = Table(title=f"{result.protocol.title}: {run}", title_justify="left")
    rows = result.details.accuracy_matrix
    table.add_column("after")
    for task in range(len(rows)):
        table.add_column(str(task + 1), justify="right")
    for index, row in enumerate(rows):
        table.add_row(str(index + 1), *(f"{100 * value:.1f}" for value in row))
    return table


def summary_table(results: Results) -> Table:
    """The metrics of each method over its seeds."""
    title = f"{protocol_title(results)}: % over all tasks (mean ± deviation over seeds)"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("seeds", justify="right")
    for metric in COMPARED:
        table.add_column(metric.title, justify="right")
    for name, runs in results.items():
        table.add_row(name, str(len(runs)), *(str(spread) for spread in summarise(runs).values()))
    return table


def comparison_table(rows: Rows, results: Results) -> None:
    """Print the table of a comparison."""
    table = Table(title=f"{protocol_title(results)}, %", title_justify="left")
    shown = [column for column in rows[0] if column in SHOWN or any(row[column] != OTHER_PROTOCOL for row in rows)]
    shown = [column for column in shown if column in (*SHOWN, PAPER_COLUMN)]
    for column in shown:
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[column] for column in shown))
    Console().print(table)


def replay_table(results: list[Replay], run: RunResult) -> Table:
    """A_last / A_inc of drifts (down) with classifiers (across)."""
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    title = f"{run.protocol.title}: {run.method} replayed{seeds}, A_last / A_inc, % (task mean)"
    table = Table(title=title, title_justify="left")
    cells = summarise_replays(results)
    table.add_column("drift", no_wrap=True)
    for kind in next(iter(cells.values())):
        table.add_column(f"classifier {kind}", justify="right")
    table.add_column("log-determinant, task 1", justify="right")
    for drift, by_kind in cells.items():
        table.add_row(drift, *map(str, by_kind.values()), mean_log_det(results, drift))
    return table


def show(results: Results, matrix_of: RunResult) -> None:
    """Print the three tables."""
    console = Console()
    for table in (accuracy_table(results), matrix_table(matrix_of), summary_table(results)):
        console.print(table)
