"""Task-aware against task-agnostic accuracy: what is lost because the task of an image is unknown."""

from __future__ import annotations

import numpy as np

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, register_study
from adagauss.analysis.studies.lines import curve, legend, longest, panels, task_axis, task_rows

AGNOSTIC, AWARE = "task-agnostic accuracy", "task-aware accuracy"


@register_study(
    "awareness",
    title="Task-aware and task-agnostic accuracy",
    claim="The gap is what confusion between tasks costs; what task-aware accuracy loses, the features have forgotten.",
    needs=[Quantity.ANSWERS],
)
def awareness(groups: Groups) -> Drawing:
    """After each task over all seen classes; and by task at the end."""
    figure, (left, right) = panels(2, [f"{label}, told the task" for label in groups])
    rows = []
    for index, (label, runs) in enumerate(groups.items()):
        over, ends = [over_tasks(run) for run in runs], [at_the_end(run) for run in runs]
        for run, curves, end in zip(runs, over, ends, strict=True):
            rows += task_rows(label, run, curves, "after task")
            rows += task_rows(label, run, {f"{name} at the end": values for name, values in end.items()})
        for axes, measured in ((left, over), (right, ends)):
            curve(axes, [100 * values[AGNOSTIC] for values in measured], label, index, dashes="-")
            told = f"{label}, told the task"
            curve(axes, [100 * values[AWARE] for values in measured], told, index, dashes=":")
    left.set_ylabel("accuracy on all seen classes, %")
    right.set_ylabel("accuracy on the task at the end, %")
    task_axis(left, longest(groups), "after task")
    task_axis(right, longest(groups), "task that the classes were learned in")
    for axes in (left, right):
        axes.set_ylim(0, 102)
    legend(right)
    return Drawing(figure, rows)


def over_tasks(run: Measured) -> dict[str, Numbers]:
    """Mean over tasks after each task."""
    return {
        name: np.array([np.mean(row) for row in run.matrix(aware)])
        for name, aware in ((AGNOSTIC, False), (AWARE, True))
    }


def at_the_end(run: Measured) -> dict[str, Numbers]:
    """On each task after the last one."""
    return {name: np.array(run.matrix(aware)[-1]) for name, aware in ((AGNOSTIC, False), (AWARE, True))}
