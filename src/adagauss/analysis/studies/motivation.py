"""Why Gaussians must be adapted: the latent space, accuracy and divergence in three cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from adagauss.analysis.figures import draw_ellipse
from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import BANKS, FOLLOWED, OWN, UNMOVED, Numbers
from adagauss.analysis.plotting import new_figure, shown
from adagauss.analysis.studies.bars import bars
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.distances import has_distances, of_old_classes
from adagauss.analysis.studies.lines import colour, legend, smaller_labels
from adagauss.analysis.studies.variants import only

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FROZEN = "frozen after task 1"
CASES = (FROZEN, "trained, not adapted", "trained, adapted")


@register_study(
    "motivation",
    title="Frozen, not adapted, adapted",
    paper="motivation: latent space, accuracy and KL divergence",
    claim="Training moves the features away from what is remembered; adapting the memory follows them.",
    needs=[Quantity.REAL, Quantity.FROZEN],
)
def motivation(groups: Groups) -> Drawing:
    """Ellipses of some classes in each case, A_last, and the mean divergence of old classes, of one configuration."""
    groups = only(
        groups,
        lambda run: has_distances(run) and "real.plane_means" in run.tables,
        "it needs runs of two tasks or more that remember covariances",
    )
    label, runs = next(iter(groups.items()))
    figure = new_figure(14.5, 3.4)
    axes = list(figure.subplots(1, 5, width_ratios=(1.3, 1.3, 1.3, 1, 1)))
    _pictures(axes[:3], runs[0])
    legend(axes[2], "class")
    accuracy = {case: [100 * _accuracy(run, case) for run in runs] for case in CASES}
    divergence = {case: [_divergence(run, case) for run in runs] for case in CASES}
    short = {"frozen": CASES[0], "not adapted": CASES[1], "adapted": CASES[2]}
    bars(axes[3], {name: accuracy[case] for name, case in short.items()}, "A_last, %", 7)
    bars(axes[4], {name: divergence[case] for name, case in short.items()}, "symmetric KL, mean of old classes", 7)
    rows: list[Row] = [
        {"group": label, "seed": run.seed, "case": case, "quantity": quantity, "value": values[case][place]}
        for quantity, values in (("A_last, %", accuracy), ("symmetric KL", divergence))
        for case in CASES
        for place, run in enumerate(runs)
    ]
    chosen = f"of the configuration {label}; " if len(groups) > 1 else ""
    note = (
        f"{chosen}solid: memorised, dashed: real (2σ); every case in the two principal directions between its real "
        f"means; pictures of seed {runs[0].seed}; frozen: the network of the first task, Gaussians exact by definition"
    )
    return Drawing(figure, rows, note)


def _pictures(axes: list[Axes], run: Measured) -> None:
    means, covariances = run.table("real.plane_means"), run.table("real.plane_covariances")
    still = (run.table("frozen.plane_means"), run.table("frozen.plane_covariances"))
    real = (means[0], covariances[0])
    pairs = ((still, still), ((means[2], covariances[2]), real), ((means[1], covariances[1]), real))
    classes = [int(place) for place in run.table("real.plane_classes")]
    for one, case, (memorised, truth) in zip(axes, CASES, pairs, strict=True):
        for index, place in enumerate(classes):
            draw_ellipse(one, _of(truth[0][index]), _of(truth[1][index]), colour(index), "--")
            draw_ellipse(one, _of(memorised[0][index]), _of(memorised[1][index]), colour(index), "-")
            one.plot(*truth[0][index], "x", color=colour(index), markersize=4)
            one.plot(*memorised[0][index], "o", color=colour(index), markersize=3)
            task = int(run.task_of_class[place]) + 1
            one.plot([], [], "s", color=colour(index), label=f"{shown(run.labels[place], 14)} (task {task})")
        one.set_title(case, fontsize=9)
        one.autoscale_view()
        one.set_aspect("equal", adjustable="datalim")
        smaller_labels(one)


def _of(values: Numbers) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _accuracy(run: Measured, case: str) -> float:
    if case == FROZEN:
        return float(run.table("frozen.accuracy")[0])
    bank = UNMOVED if case == CASES[1] else OWN
    return float(run.table("real.accuracy")[-1, BANKS.index(bank)])


def _divergence(run: Measured, case: str) -> float:
    if case == FROZEN:
        return 0.0
    place = FOLLOWED.index(UNMOVED if case == CASES[1] else OWN)
    return float(of_old_classes(run, place)["kl"][-1])
