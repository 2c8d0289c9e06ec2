"""A contact sheet: images with what they show and what they were taken for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adagauss.analysis.judging import Judged
from adagauss.analysis.plotting import new_figure, shown
from adagauss.data.decode import decode_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 4
SIDE = 224
CAPTION = 26


def contact_sheet(judged: Sequence[Judged], title: str) -> Figure:
    """One picture each, in reading order; the caption names the answer first, and what was right below."""
    rows = max(1, -(-len(judged) // ACROSS))
    figure = new_figure(2.3 * ACROSS, 2.8 * rows + 0.5)
    figure.suptitle(shown(title, 90), fontsize=9)
    grid = figure.subplots(rows, ACROSS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, one in zip(grid.flat, judged, strict=False):
        axes.imshow(np.moveaxis(decode_image(Path(one.name), SIDE, 3, None), 0, 2))
        answer = f"{shown(one.answer, CAPTION)} {100 * one.probability:.0f} %"
        truth = f"is {shown(one.truth, CAPTION - 3)}"
        axes.set_title(f"{answer}\n{truth}\n{shown(Path(one.name).name, CAPTION, keep_end=True)}", fontsize=7)
    return figure
