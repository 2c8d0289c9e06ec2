"""The task-recency bias itself: how many predictions fall on each task."""

from __future__ import annotations

import numpy as np

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, register_study
from adagauss.analysis.studies.lines import curve, legend, longest, panels, task_axis, task_rows


@register_study(
    "recency",
    title="Share of predictions by task",
    claim="Without bias each task gets its share of the predictions; a rise to the right is the task-recency bias.",
    needs=[Quantity.ANSWERS],
)
def recency(groups: Groups) -> Drawing:
    """After the last task: predictions that fall on each task, over the task's share of the test images."""
    figure, (left, right) = panels(2, groups)
    rows = []
    for index, (label, runs) in enumerate(groups.items()):
        ratios = [share_over_fair(run) for run in runs]
        excess = [late_excess(run) for run in runs]
        for run, ratio, late in zip(runs, ratios, excess, strict=True):
            rows += task_rows(label, run, {"share of predictions / share of images": ratio})
            rows += task_rows(label, run, {"share of errors that fall on the newest task": late}, "after task", 2)
        curve(left, ratios, label, index)
        curve(right, [100 * late for late in excess], label, index, start=2)
    left.axhline(1, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    left.set_ylabel("share of predictions / share of test images\n(1: no bias)")
    left.set_ylim(bottom=0)
    task_axis(left, longest(groups), "task predicted, after the last task")
    right.set_ylabel("% of errors on old tasks\nthat are taken for the newest task")
    right.set_ylim(0, 102)
    task_axis(right, max(1, longest(groups) - 1), "after task", 2)
    legend(right)
    return Drawing(figure, rows)


def share_over_fair(run: Measured) -> Numbers:
    """Predictions of each task over its test images, after the last finished task."""
    last = run.evaluations[-1]
    images = np.bincount(last.task_of_class[last.true].numpy(), minlength=len(last.sizes))
    shares: Numbers = np.array(last.prediction_share()) * len(last.true) / images
    return shares


def late_excess(run: Measured) -> Numbers:
    """After each task from the second: of the wrongly predicted images of old tasks, the share put into the newest.

    NaN where no image of an old task is wrong.
    """
    found = []
    for evaluation in run.evaluations[1:]:
        newest = len(evaluation.sizes) - 1
        task = evaluation.task_of_class
        wrong = (evaluation.predicted != evaluation.true) & (task[evaluation.true] < newest)
        late = wrong & (task[evaluation.predicted] == newest)
        found.append(float(late.sum()) / float(wrong.sum()) if bool(wrong.any()) else np.nan)
    return np.array(found)
