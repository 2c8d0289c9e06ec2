"""Condition numbers of the memorised covariances: how much an inverse magnifies errors."""

from __future__ import annotations

import numpy as np
import torch

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, register_study
from adagauss.analysis.studies.lines import curve, legend, longest, panels, task_axis, task_rows
from adagauss.analysis.studies.ranks import AXIS
from adagauss.analysis.studies.variants import with_covariances
from adagauss.core import linalg

QUANTITY = "condition number, geometric mean"


@register_study(
    "conditions",
    title="Condition numbers of memorised covariances",
    claim="Early tasks whose covariances have collapsed are worse conditioned, and their inverses mostly noise.",
    needs=[Quantity.MEMORY],
)
def conditions(groups: Groups) -> Drawing:
    """λ₁/λₛ, geometric mean over classes: by task at the end, and over all classes after each task."""
    groups = with_covariances(groups)
    figure, (left, right) = panels(2, groups)
    rows = []
    for index, (label, runs) in enumerate(groups.items()):
        ends, over = [at_the_end(run) for run in runs], [over_tasks(run) for run in runs]
        for run, end, after in zip(runs, ends, over, strict=True):
            rows += task_rows(label, run, {f"{QUANTITY}, at the end": end})
            rows += task_rows(label, run, {f"{QUANTITY}, all classes": after}, "after task")
        curve(left, ends, label, index)
        curve(right, over, label, index)
    left.set_ylabel("λ₁ / λₛ at the end,\ngeometric mean over the classes of the task")
    right.set_ylabel("λ₁ / λₛ,\ngeometric mean over all classes")
    task_axis(left, longest(groups), AXIS)
    task_axis(right, longest(groups), "after task")
    for axes in (left, right):
        axes.set_yscale("log")
    legend(right)
    return Drawing(figure, rows)


def at_the_end(run: Measured) -> Numbers:
    """Of the classes of each task after the last one."""
    means: Numbers = np.exp(run.by_task(_logs(run, run.finished - 1)))
    return means


def over_tasks(run: Measured) -> Numbers:
    """Of all classes known after each task."""
    return np.array([np.exp(np.mean(_logs(run, task))) for task in range(run.finished)])


def _logs(run: Measured, task: int) -> Numbers:
    known = sum(run.sizes[: task + 1])
    values = torch.from_numpy(run.table("memory.spectra")[task, :known])
    # A singular matrix is as badly conditioned as float64 can tell.
    largest = 1 / torch.finfo(torch.float64).eps
    logs: Numbers = linalg.condition_number(values).clamp_max(largest).log().numpy()
    return logs
