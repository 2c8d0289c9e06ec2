"""Distances of memorised to real Gaussians after each task: not adapted, EFC's update, and as run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adagauss.analysis.distances import DISTANCES
from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import EFC_UPDATE, FOLLOWED, OWN, Numbers
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import Mean, colour, curve, legend, longest, panels, task_axis, task_rows
from adagauss.analysis.studies.variants import only
from adagauss.experiments.paper import in_figures

PANELS = {"mean": "‖μ − μ*‖₂", "covariance": "‖Σ − Σ*‖_F", "kl": "KL(N‖N*) + KL(N*‖N)"}
IN_PAPER = {"mean": "mean_l2", "covariance": "cov_l2", "kl": "sym_kl"}
STYLES = {OWN: "-", EFC_UPDATE: "--"}


@register_study(
    "distances",
    title="Memorised against real statistics of old classes",
    paper="adaptation distances: means, covariances, symmetric KL",
    claim="Adapting means and covariances lowers all distances, against EFC's update by 29, 39 and 72 %.",
    needs=[Quantity.REAL],
)
def distances(groups: Groups) -> Drawing:
    """Mean over old classes after each task from the second, on the same networks for all three memories."""
    groups = only(groups, has_distances, "it needs runs of two tasks or more that remember something per class")
    alone = len(groups) == 1
    names = [_name(label, follow, alone) for label in groups for follow in FOLLOWED]
    figure, axes = panels(3, names)
    rows: list[Row] = []
    for number, (label, runs) in enumerate(groups.items()):
        for place, follow in enumerate(FOLLOWED):
            measured = [of_old_classes(run, place) for run in runs]
            for run, values in zip(runs, measured, strict=True):
                rows += [{**row, "memory": follow} for row in task_rows(label, run, values, "after task", 2)]
            for one, quantity in zip(axes, PANELS, strict=True):
                index = place if alone else number
                curve(
                    one,
                    [values[quantity] for values in measured],
                    _name(label, follow, alone),
                    index,
                    dashes=STYLES.get(follow, ":"),
                    start=2,
                    hue=colour(index),
                )
    paper = in_figures("Fig. adaptation distances")
    for one, quantity in zip(axes, PANELS, strict=True):
        one.set_ylabel(f"{PANELS[quantity]},\nmean over old classes")
        task_axis(one, longest(groups) - 1, "after task", 2)
        if quantity == "kl":
            one.set_yscale("log")
        else:
            one.set_ylim(bottom=0)
        if alone:
            change = against_efc(next(iter(groups.values())), quantity)
            one.set_title(f"as run against EFC's: {change:+.0%} (paper {-paper[IN_PAPER[quantity]]:+.0%})", fontsize=8)
        rows.append({"group": "paper", "quantity": f"{quantity}: against EFC's", "value": -paper[IN_PAPER[quantity]]})
    legend(axes[2])
    return Drawing(figure, rows, "* marks real statistics; all memories are on the networks of the same run")


def has_distances(run: Measured) -> bool:
    """Whether the run has old classes and remembers something of them."""
    return run.finished > 1 and bool(np.isfinite(run.table("real.distances")[1:, :, :, 0]).any())


def of_old_classes(run: Measured, place: int) -> dict[str, Numbers]:
    """Each distance of one memory, after each task from the second: mean over the classes of earlier tasks."""
    table = run.table("real.distances")
    old = np.cumsum(run.sizes)
    curves = np.stack([table[task, place, : old[task - 1]].mean(0) for task in range(1, run.finished)])
    return {quantity: curves[:, column] for column, quantity in enumerate(DISTANCES)}


def against_efc(runs: Sequence[Measured], quantity: str) -> float:
    """Relative change of a distance from EFC's update to the run's own, mean over tasks and runs."""
    own, efc = (
        np.nanmean(Mean.of([of_old_classes(run, FOLLOWED.index(name))[quantity] for run in runs]).mean)
        for name in (OWN, EFC_UPDATE)
    )
    return float(own / efc - 1)


def _name(label: str, follow: str, alone: bool) -> str:
    return follow if alone else f"{label}, {follow}"
