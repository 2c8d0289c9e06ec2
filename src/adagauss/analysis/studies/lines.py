"""Curves over tasks, with a band over seeds, in colours that all readers can tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from adagauss.analysis.measured import Measured
from adagauss.analysis.measured.quantities import Numbers
from adagauss.analysis.plotting import MANY_TICKS, new_figure, shown
from adagauss.analysis.studies.base import Groups, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
"""Okabe and Ito's, without yellow, which vanishes on white."""
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LEGEND_NAME = 44
PANEL = 3.5
"""Inches across."""


def colour(index: int) -> str:
    """The colour of the n-th line."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str:
    """Another style of line each time that all colours are used."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


def marker(index: int) -> str:
    """The marker of the n-th line; with the next use of a colour comes another one."""
    return MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def panels(count: int, groups: Iterable[str], height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A row of axes, with room for a legend of these names at their right."""
    longest = max((len(shown(name, LEGEND_NAME)) for name in groups), default=0)
    figure = new_figure(PANEL * count + 0.7 + 0.075 * longest, height)
    row = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in row:
        smaller_labels(axes)
    return figure, row


def smaller_labels(axes: Axes) -> None:
    """Long labels of axes must fit beside a small panel."""
    axes.tick_params(which="both", labelsize=8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_fontsize(9)


def legend(axes: Axes, title: str = "") -> None:
    """Names beside the last panel, where they cover nothing."""
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
        fontsize=8,
        title=title or None,
        title_fontsize=8,
        handlelength=3.2,
    )


def name(text: object) -> str:
    """A label for the legend."""
    return shown(text, LEGEND_NAME)


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation over runs at each place; runs may have come less far than others."""

    mean: Numbers
    deviation: Numbers
    """NaN where fewer than two runs have come so far."""

    @classmethod
    def of(cls, runs: Sequence[Numbers]) -> Mean:
        """Over runs of any lengths; NaN and shorter runs do not count.

        >>> Mean.of([np.array([1.0, 2.0]), np.array([3.0])]).mean.tolist()
        [2.0, 2.0]
        """
        length = max(len(run) for run in runs)
        values = np.full((len(runs), length), np.nan)
        for row, run in zip(values, runs, strict=True):
            row[: len(run)] = run
        there = np.isfinite(values)
        count = there.sum(0)
        total = np.where(there, values, 0.0).sum(0)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        squares = np.where(there, (values - mean) ** 2, 0.0).sum(0)
        deviation = np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan)
        return cls(mean, deviation)


def curve(
    axes: Axes,
    runs: Sequence[Numbers],
    label: str,
    index: int,
    *,
    dashes: str | None = None,
    start: int = 1,
    hue: str | None = None,
) -> None:
    """One line over the tasks start, start + 1, …, with a band of one standard deviation if there are several runs."""
    summary = Mean.of(runs)
    tasks = np.arange(start, start + len(summary.mean))
    chosen = hue or colour(index)
    axes.plot(
        tasks,
        summary.mean,
        dashes or dash(index),
        color=chosen,
        label=name(label),
        marker=marker(index) if len(tasks) <= MANY_TICKS else "",
        markersize=4,
        linewidth=1.6,
    )
    if np.isfinite(summary.deviation).any():
        low, high = summary.mean - summary.deviation, summary.mean + summary.deviation
        axes.fill_between(tasks, low, high, color=chosen, alpha=0.15, linewidth=0)


def task_axis(axes: Axes, count: int, label: str, start: int = 1) -> None:
    """Whole numbers of tasks, as many as there is room for."""
    step = -(-count // (MANY_TICKS // 2))
    axes.set_xticks(range(start, start + count, step))
    axes.set_xlabel(label)
    axes.grid(alpha=0.3, linewidth=0.6)


def longest(groups: Groups) -> int:
    """Most tasks that any run has finished."""
    return max(run.finished for runs in groups.values() for run in runs)


def task_rows(
    group: str, run: Measured, values: Mapping[str, Numbers], axis: str = "task", start: int = 1
) -> list[Row]:
    """One row for every quantity and task of a run."""
    return [
        {"group": group, "seed": run.seed, axis: start + place, "quantity": quantity, "value": float(value)}
        for quantity, numbers in values.items()
        for place, value in enumerate(numbers)
        if not np.isnan(value)
    ]
