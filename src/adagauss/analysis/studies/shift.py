"""How far each class was moved in each task: a map of classes and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.plotting import new_figure, shown
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import LEGEND_NAME, Mean, smaller_labels
from adagauss.analysis.studies.variants import only

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

MOST_MAPS = 4
MOST_NAMES = 60
"""Classes up to which each row has a name."""


@register_study(
    "shift",
    title="Predicted shift of the class means",
    paper="predicted shift, class by task",
    claim="Shifts differ between classes and tasks, so one shift for all would not do.",
    needs=[Quantity.MEMORY],
)
def shift(groups: Groups) -> Drawing:
    """‖μ_c after the drift of task t − μ_c before‖₂, mean over seeds, for every class c and task t."""
    groups = only(groups, lambda run: run.finished > 1, "it needs runs of two tasks or more")
    moved = {label: [run.table("memory.shift")[:, :, 0] for run in runs] for label, runs in groups.items()}
    rows: list[Row] = [
        {
            "group": label,
            "seed": run.seed,
            "class": str(run.labels[place]),
            "task": task + 1,
            "shift": float(one[task, place]),
            "shift / √tr Σ": float(run.table("memory.shift")[task, place, 1]),
        }
        for label, runs in groups.items()
        for run, one in zip(runs, moved[label], strict=True)
        for task in range(1, run.finished)
        for place in range(sum(run.sizes[:task]))
    ]
    drawn = list(groups)[:MOST_MAPS]
    classes = max(len(groups[label][0].labels) for label in drawn)
    height = min(9.0, max(3.4, 1.2 + 0.14 * min(classes, MOST_NAMES)))
    figure = new_figure(2.2 + 3.1 * len(drawn), height)
    grid = list(figure.subplots(1, len(drawn), squeeze=False)[0])
    largest = max(float(np.nanmax(one)) for label in drawn for one in moved[label])
    images = [
        _map(axes, label, groups[label][0], moved[label], largest) for axes, label in zip(grid, drawn, strict=True)
    ]
    bar = figure.colorbar(images[-1], ax=grid, fraction=0.04, pad=0.02)
    bar.set_label("‖μ after − μ before‖₂, mean over seeds", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    more = f"; {len(groups) - MOST_MAPS} more groups are in the CSV file" if len(groups) > MOST_MAPS else ""
    return Drawing(figure, rows, f"grey: not learned yet, or learned in this task{more}")


def _map(axes: Axes, label: str, run: Measured, moved: list[Numbers], largest: float) -> AxesImage:
    shapes = {one.shape for one in moved}
    tasks, classes = max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
    flat = Mean.of([_padded(one, tasks, classes).ravel() for one in moved]).mean.reshape(tasks, classes)
    axes.set_facecolor("#e6e6e6")
    image = axes.imshow(
        flat[1:].T, aspect="auto", cmap="viridis", vmin=0, vmax=largest, extent=(1.5, tasks + 0.5, classes - 0.5, -0.5)
    )
    smaller_labels(axes)
    step = -(-(tasks - 1) // 10)
    axes.set_xticks(range(2, tasks + 1, step))
    if classes <= MOST_NAMES:
        axes.set_yticks(range(len(run.labels)), [shown(one, 20) for one in run.labels], fontsize=6.5)
    else:
        axes.set_ylabel("class, in the order learned")
    axes.set_xlabel("after task")
    axes.set_title(shown(label, LEGEND_NAME), fontsize=9)
    return image


def _padded(values: Numbers, tasks: int, classes: int) -> Numbers:
    padded = np.full((tasks, classes), np.nan)
    padded[: values.shape[0], : values.shape[1]] = values
    return padded
