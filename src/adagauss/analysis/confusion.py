"""The confusion matrix as a figure, readable from a few classes to hundreds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from adagauss.analysis.plotting import name_ticks, new_figure, number_ticks, set_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NUMBERS = 25
"""Classes up to which each cell holds its number."""
MOST_NAMES = 120
"""Classes up to which each row has a name; of more classes only the tasks are told apart."""
LARGEST = 13.0
"""Inches."""


def confusion_figure(
    counts: npt.ArrayLike, names: Sequence[object], tasks: Sequence[int] = (), title: str = ""
) -> Figure:
    """Shares of the images of each true class (row) that are predicted as each class (column), in percent.

    Classes are in the order of ``names``; ``tasks`` are the numbers of classes per task, divided by lines.
    Colours follow the square root of the share, so that a confusion of a few percent can be seen.
    """
    from matplotlib.colors import PowerNorm

    values = np.array(counts, dtype=np.float64)
    values = 100 * values / np.maximum(values.sum(1, keepdims=True), 1)
    size = len(values)
    side = min(LARGEST, max(3.2, 0.42 * size if size <= MOST_NUMBERS else 3.0 + 0.1 * size))
    figure = new_figure(side + 2.6, side + 1.8)
    axes = figure.add_subplot()
    image = axes.imshow(values, norm=PowerNorm(0.5, 0, 100), cmap="viridis")
    if size <= MOST_NUMBERS:
        for row, column in zip(*np.nonzero(values >= 0.5), strict=True):
            shade = "white" if values[row, column] < 35 else "black"
            axes.text(column, row, f"{values[row, column]:.0f}", ha="center", va="center", color=shade, fontsize=8)
    if size <= MOST_NAMES:
        name_ticks(axes, names, 8 if size <= MOST_NUMBERS else max(5.0, min(8.0, 60 * side / size)))
    else:
        number_ticks(axes, size, both=True)
    for edge in list(accumulate(tasks))[:-1]:
        axes.axhline(edge - 0.5, color="white", linewidth=0.8)
        axes.axvline(edge - 0.5, color="white", linewidth=0.8)
    axes.set(xlabel="predicted class", ylabel="true class")
    set_title(axes, title)
    figure.colorbar(image, label="% of the true class", shrink=0.7, ticks=[0, 1, 5, 10, 25, 50, 100])
    return figure
