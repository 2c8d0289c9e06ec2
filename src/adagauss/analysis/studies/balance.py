"""Forgetting against plasticity: the two sides of every incremental learner."""

from __future__ import annotations

import numpy as np

from adagauss.analysis.measured import Quantity
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import colour, legend, marker, name, panels
from adagauss.analysis.studies.variants import only
from adagauss.experiments.metrics import forgetting, plasticity


@register_study(
    "balance",
    title="Forgetting against plasticity",
    claim="Up and to the left is better: new tasks are learned well, and old ones are kept.",
    needs=[Quantity.ANSWERS],
)
def balance(groups: Groups) -> Drawing:
    """One point per run, one cross per configuration with its deviations over seeds."""
    groups = only(groups, lambda run: run.finished > 1, "it needs runs of two tasks or more")
    figure, (axes,) = panels(1, groups, height=3.8)
    rows: list[Row] = []
    for index, (label, runs) in enumerate(groups.items()):
        points = 100 * np.array([(forgetting(run.matrix()), plasticity(run.matrix())) for run in runs])
        for run, (lost, learned) in zip(runs, points, strict=True):
            rows.append({"group": label, "seed": run.seed, "forgetting, %": lost, "plasticity, %": learned})
        across, up = points.mean(0)
        axes.plot(across, up, marker(index), color=colour(index), markersize=8, label=name(label), ls="")
        if len(runs) > 1:
            wide, high = points.std(0, ddof=1)
            axes.errorbar(across, up, high, wide, color=colour(index), capsize=2, linewidth=1)
            axes.scatter(points[:, 0], points[:, 1], s=8, color=colour(index), alpha=0.5)
    axes.set_xlabel("forgetting, % (best accuracy on an old task − final one)")
    axes.set_ylabel("plasticity, % (accuracy on a task right after it)")
    axes.margins(0.15)
    axes.grid(alpha=0.3, linewidth=0.6)
    legend(axes)
    return Drawing(figure, rows)
