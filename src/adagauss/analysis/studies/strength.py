"""Representation strength: how many directions hold 95 % of the variance of the features."""

from __future__ import annotations

import numpy as np
import torch

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, register_study
from adagauss.analysis.studies.lines import curve, legend, longest, panels, task_axis, task_rows
from adagauss.core import linalg

PUBLISHED = "directions below 95 % of the variance, all seen tasks"
BY_TASK = "directions below 95 % of the variance, mean over tasks"
EFFECTIVE = "effective rank, all seen tasks"


@register_study(
    "strength",
    title="Representation strength",
    paper="representation strength per distillation",
    claim="Projected distillation lets features spread over more directions than feature or logit distillation.",
    needs=[Quantity.REAL],
)
def strength(groups: Groups) -> Drawing:
    """After each task, from the covariance of all features, classes together."""
    figure, axes = panels(3, groups)
    rows = []
    for index, (label, runs) in enumerate(groups.items()):
        measured = [strengths(run) for run in runs]
        for run, values in zip(runs, measured, strict=True):
            rows += task_rows(label, run, values, "after task")
        for one, quantity in zip(axes, (PUBLISHED, BY_TASK, EFFECTIVE), strict=True):
            curve(one, [values[quantity] for values in measured], label, index)
    axes[0].set_ylabel("directions with cumulative variance < 95 %,\nfeatures of all seen tasks together")
    axes[1].set_ylabel("the same of each seen task,\nmean over tasks")
    axes[2].set_ylabel("effective rank, exp(entropy of λ),\nfeatures of all seen tasks together")
    for one in axes:
        one.set_ylim(bottom=0)
        task_axis(one, longest(groups), "after task")
    legend(axes[2])
    return Drawing(figure, rows, "one direction more than counted is needed to reach 95 %")


def strengths(run: Measured) -> dict[str, Numbers]:
    """Each quantity after every task."""
    together, tasks = (torch.from_numpy(run.table(f"real.{name}")) for name in ("all_spectra", "task_spectra"))
    of_tasks = [float(linalg.directions(tasks[t, : t + 1]).double().mean()) for t in range(run.finished)]
    return {
        PUBLISHED: linalg.directions(together).double().numpy(),
        BY_TASK: np.array(of_tasks),
        EFFECTIVE: linalg.effective_rank(together).numpy(),
    }
