"""Bars with the single runs as points, so that the spread over seeds is seen."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from adagauss.analysis.plotting import shown
from adagauss.analysis.studies.lines import colour, smaller_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOM = 1.18


def bars(axes: Axes, values: Mapping[str, Sequence[float]], label: str, letters: int = 12) -> None:
    """One bar per name, its mean written above it; the deviation over seeds as a whisker, if there are several.

    Names are broken into lines of so many ``letters``.
    """
    means = [float(np.mean(numbers)) for numbers in values.values()]
    deviations = [float(np.std(numbers, ddof=1)) if len(numbers) > 1 else np.nan for numbers in values.values()]
    places = range(len(values))
    axes.bar(places, means, width=0.7, color=[colour(index) for index in places], alpha=0.85)
    for place, numbers, mean, deviation in zip(places, values.values(), means, deviations, strict=True):
        spread = 0.0 if np.isnan(deviation) else deviation
        if spread:
            axes.errorbar(place, mean, spread, color="black", capsize=3, linewidth=1)
            axes.scatter(
                [place] * len(numbers), numbers, s=9, color="white", edgecolors="black", linewidths=0.6, zorder=3
            )
        highest = max(mean + spread, *numbers, 0.0)
        axes.annotate(
            f"{mean:.1f}" if mean < 1000 else f"{mean:.0f}",
            (place, highest),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    top = max(max(mean, *numbers) for mean, numbers in zip(means, values.values(), strict=True))
    axes.set_ylim(0, max(top * ROOM, 1e-9))
    axes.set_xticks(places, [textwrap.fill(shown(name, 36), letters) for name in values])
    smaller_labels(axes)
    if len(values) > 4:
        axes.tick_params(axis="x", labelrotation=35)
        for tick in axes.get_xticklabels():
            tick.set_horizontalalignment("right")
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
