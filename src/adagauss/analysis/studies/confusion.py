"""The confusion matrix ordered by task: of classes, and of whole tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.plotting import new_figure, shown
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import smaller_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

MOST_MAPS = 4
MOST_NUMBERS = 12
"""Tasks up to which each cell holds its number."""
MOST_NAMES = 20
"""Classes up to which each row has a name."""


@register_study(
    "confusion",
    title="Confusion by task",
    claim="Bright columns at the right are the task-recency bias; blocks on the diagonal are confusion within a task.",
    needs=[Quantity.ANSWERS],
)
def confusion(groups: Groups) -> Drawing:
    """Shares of the images of each true class or task, in percent, after the last task, over all seeds."""
    from matplotlib.colors import PowerNorm

    drawn = list(groups)[:MOST_MAPS]
    figure = new_figure(1.4 + 3.3 * len(drawn), 6.6)
    grid = figure.subplots(2, len(drawn), squeeze=False)
    norm = PowerNorm(0.5, 0, 100)
    rows: list[Row] = []
    image: AxesImage | None = None
    for label, runs in groups.items():
        classes, tasks = confusions(runs)
        rows += _rows(label, runs[0], classes, tasks)
        if label not in drawn:
            continue
        upper, lower = grid[:, drawn.index(label)]
        image = upper.imshow(classes, norm=norm, cmap="viridis", interpolation="nearest")
        for edge in np.cumsum(runs[0].sizes)[:-1]:
            upper.axhline(edge - 0.5, color="white", linewidth=0.6)
            upper.axvline(edge - 0.5, color="white", linewidth=0.6)
        lower.imshow(tasks, norm=norm, cmap="viridis")
        upper.set_title(shown(label, 40), fontsize=9)
        _class_ticks(upper, runs)
        _task_cells(lower, tasks)
    for axes, words in zip(grid[:, 0], ("true class", "true task"), strict=True):
        axes.set_ylabel(words)
    for row, words in zip(grid, ("predicted class, in the order learned", "predicted task"), strict=True):
        for axes in row:
            axes.set_xlabel(words)
    assert image is not None, "there is at least one group"
    bar = figure.colorbar(image, ax=grid, shrink=0.7, fraction=0.04, pad=0.02, ticks=[0, 1, 5, 10, 25, 50, 100])
    bar.set_label("% of the true class or task", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    more = f"{len(groups) - MOST_MAPS} more groups are in the CSV file" if len(groups) > MOST_MAPS else ""
    return Drawing(figure, rows, more)


def confusions(runs: Sequence[Measured]) -> tuple[Numbers, Numbers]:
    """Percentages by class and by task, over the runs that have come farthest."""
    far = [run for run in runs if run.sizes == max((one.sizes for one in runs), key=sum)]
    counts = sum((run.evaluations[-1].confusion().double().numpy() for run in far), np.zeros(()))
    task = far[0].task_of_class
    member = (task[:, None] == np.arange(len(far[0].sizes))).astype(np.float64)
    return _percent(counts), _percent(member.T @ counts @ member)


def _percent(counts: Numbers) -> Numbers:
    shares: Numbers = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return shares


def _class_ticks(axes: Axes, runs: Sequence[Measured]) -> None:
    smaller_labels(axes)
    same = all(run.labels == runs[0].labels for run in runs)
    if same and len(runs[0].labels) <= MOST_NAMES:
        names = [shown(label, 12) for label in runs[0].labels]
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6.5)
        axes.set_yticks(range(len(names)), names, fontsize=6.5)


def _task_cells(axes: Axes, tasks: Numbers) -> None:
    smaller_labels(axes)
    size = len(tasks)
    ticks = range(0, size, -(-size // 10))
    axes.set_xticks(ticks, [str(tick + 1) for tick in ticks])
    axes.set_yticks(ticks, [str(tick + 1) for tick in ticks])
    for row, column in np.ndindex(tasks.shape) if size <= MOST_NUMBERS else ():
        shade = "white" if tasks[row, column] < 35 else "black"
        axes.text(column, row, f"{tasks[row, column]:.0f}", ha="center", va="center", color=shade, fontsize=7)


def _rows(label: str, run: Measured, classes: Numbers, tasks: Numbers) -> list[Row]:
    """All pairs of tasks, and the pairs of classes that occur."""
    of_tasks: list[Row] = [
        {"group": label, "of": "tasks", "true": f"task {row + 1}", "predicted": f"task {column + 1}", "%": value}
        for (row, column), value in np.ndenumerate(tasks)
    ]
    of_classes: list[Row] = [
        {
            "group": label,
            "of": "classes",
            "true": str(run.labels[row]),
            "predicted": str(run.labels[column]),
            "%": float(classes[row, column]),
        }
        for row, column in np.argwhere(classes > 0)
    ]
    return of_tasks + of_classes
