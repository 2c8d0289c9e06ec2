"""Rank and inverse norm of the memorised covariances by task, after the last one."""

from __future__ import annotations

import torch

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, register_study
from adagauss.analysis.studies.lines import curve, legend, longest, panels, task_axis, task_rows
from adagauss.analysis.studies.variants import with_covariances
from adagauss.core import linalg

AXIS = "task that the classes were learned in"
QUANTITIES = {
    "rank, λ > 0.01": linalg.absolute_rank,
    "rank, λ > 0.001·λ₁": linalg.relative_rank,
    "effective rank": linalg.effective_rank,
    "‖Σ⁻¹‖_F": linalg.inverse_norm,
}


@register_study(
    "ranks",
    title="Rank and inverse norm of memorised covariances",
    paper="rank and inverse norm by task",
    claim="Covariances of early tasks have lower ranks, and so larger inverses: the task-recency bias.",
    needs=[Quantity.MEMORY],
)
def ranks(groups: Groups) -> Drawing:
    """Mean over the classes of each task, after the last task, of four functions of the eigenvalues."""
    groups = with_covariances(groups)
    figure, axes = panels(3, groups)
    rows = []
    for index, (label, runs) in enumerate(groups.items()):
        measured = [by_task(run) for run in runs]
        for run, values in zip(runs, measured, strict=True):
            rows += task_rows(label, run, values)
        absolute, relative, effective, inverse = ([values[name] for values in measured] for name in QUANTITIES)
        curve(axes[0], absolute, label, index, dashes="-")
        curve(axes[0], relative, f"{label}, relative", index, dashes=":")
        curve(axes[1], effective, label, index, dashes="-")
        curve(axes[2], inverse, label, index, dashes="-")
    axes[0].set_ylabel("mean rank: λ > 0.01 (solid, the paper's),\nλ > 0.001·λ₁ (dotted, scale-free)")
    axes[1].set_ylabel("mean effective rank, exp(entropy of λ)")
    axes[2].set_ylabel("mean ‖Σ⁻¹‖ (Frobenius), nothing shrunk")
    axes[2].set_yscale("log")
    for one in axes[:2]:
        one.set_ylim(bottom=0)
    for one in axes:
        task_axis(one, longest(groups), AXIS)
    legend(axes[2])
    return Drawing(figure, rows)


def by_task(run: Measured) -> dict[str, Numbers]:
    """Each of `QUANTITIES` of the covariances after the last finished task, mean over the classes of each task."""
    values = torch.from_numpy(run.table("memory.spectra")[-1])
    return {name: run.by_task(function(values).double().numpy()) for name, function in QUANTITIES.items()}
