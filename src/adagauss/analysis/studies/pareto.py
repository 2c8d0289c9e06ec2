"""Accuracy against time and against bytes: which methods are worth what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from adagauss.analysis.measured import Measured, Quantity
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.studies.base import Drawing, Groups, Row, register_study
from adagauss.analysis.studies.lines import colour, legend, marker, name, panels
from adagauss.analysis.studies.provenance import protocol_of
from adagauss.experiments.paper import published, published_minutes
from adagauss.experiments.run import Cost
from adagauss.methods import method_info

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MINUTES, BYTES = "training, minutes", "stored beside the network, bytes"


@register_study(
    "pareto",
    title="Accuracy against time and memory",
    claim="On the line nothing else is both better and cheaper.",
    needs=[Quantity.ANSWERS],
)
def pareto(groups: Groups) -> Drawing:
    """A_last against training time and against what is stored, mean over seeds; the Pareto front of each."""
    figure, axes = panels(2, [f"{label} 00.0" for label in groups], height=max(3.6, 0.9 + 0.2 * len(groups)))
    costs = {label: np.array([cost(run) for run in runs]).mean(0) for label, runs in groups.items()}
    scores = {label: float(np.mean([100 * run.accuracy[-1] for run in runs])) for label, runs in groups.items()}
    rows: list[Row] = [
        {"group": label, "seed": run.seed, "A_last, %": 100 * run.accuracy[-1], MINUTES: minutes, BYTES: size}
        for label, runs in groups.items()
        for run, (minutes, size) in ((run, cost(run)) for run in runs)
    ]
    order = sorted(groups, key=lambda label: -scores[label])
    for place, one in enumerate(axes):
        for index, label in enumerate(order):
            text = f"{name(label)}  {scores[label]:.1f}"
            one.plot(
                costs[label][place], scores[label], marker(index), color=colour(index), markersize=6, label=text, ls=""
            )
        points = np.array([(costs[label][place], scores[label]) for label in order])
        chosen = front(points)
        one.plot(*points[chosen].T, color="#999999", linewidth=1, zorder=0, drawstyle="steps-post")
        one.set_ylabel("A_last, %")
        one.margins(0.1)
        one.grid(alpha=0.3, linewidth=0.6)
    rows += _of_paper(axes[0], groups)
    axes[0].set_xlabel(f"{MINUTES}, all tasks (log scale)")
    axes[1].set_xlabel(f"{BYTES} (log scale above 1 kB)")
    axes[0].set_xscale("log")
    axes[1].set_xscale("symlog", linthresh=1e3)
    legend(axes[1], "A_last, %")
    return Drawing(figure, rows, "grey line: Pareto front; the network itself is not counted in the bytes")


def cost(run: Measured) -> tuple[float, float]:
    """Minutes of training over all tasks, and bytes stored beside the network after the last one."""
    total = Cost.of(run.facts)
    return total.training_seconds / 60, float(total.bytes_per_class * len(run.labels) + total.other_state_bytes)


def front(points: Numbers) -> list[int]:
    """Rows (cost, score) that no other row beats in both, by cost.

    >>> front(np.array([[1.0, 50.0], [2.0, 40.0], [3.0, 60.0]]))
    [0, 2]
    """
    kept: list[int] = []
    for row in sorted(range(len(points)), key=lambda row: (points[row, 0], -points[row, 1])):
        if not kept or points[row, 1] > points[kept[-1], 1]:
            kept.append(row)
    return kept


def _of_paper(axes: Axes, groups: Groups) -> list[Row]:
    """The paper's own minutes and accuracies for this protocol, which it has for CIFAR-100 in ten tasks."""
    rows: list[Row] = []
    drawn: list[str] = []
    for runs in groups.values():
        found = _quoted(runs)
        if found is None or found[0] in drawn:
            continue
        title, minutes, score = found
        drawn.append(title)
        label = "paper, its hardware" if len(drawn) == 1 else None
        axes.plot(minutes, score, "o", mfc="none", mec="black", markersize=8, ls="", label=label)
        axes.annotate(title, (minutes, score), xytext=(5, 4), textcoords="offset points", fontsize=7)
        rows.append({"group": f"paper: {title}", "A_last, %": score, MINUTES: minutes})
    return rows


def _quoted(runs: Sequence[Measured]) -> tuple[str, float, float] | None:
    run = runs[0]
    protocol, method = protocol_of(run), run.config.method_name
    title = method_info(method).title
    numbers = published(title, method, protocol.dataset, protocol.tasks, protocol.scale)
    minutes = published_minutes(title, method, protocol.dataset, len(protocol.tasks))
    return (title, minutes, numbers.a_last) if numbers and minutes else None
