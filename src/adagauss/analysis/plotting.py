"""Helpers of all figures: one style, no display, and files that are replaced completely or not at all."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from adagauss.experiments.run import Numbers, Run
from adagauss.utils.files import write_atomically
from adagauss.utils.progress import clipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
"""The palette of Okabe and Ito without yellow, which is invisible on white."""
GREY = COLOURS[6]
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LONGEST_NAME = 44
DOTS_PER_INCH = 130
MANY_TICKS = 20
MOST_NUMBERS = 25
"""Rows of a matrix up to which each cell shows its number."""

Row = dict[str, str | float]
"""A number of a figure with what identifies it; the rows become a CSV file."""


def new_figure(width: float = 6.0, height: float = 4.0) -> Figure:
    """Return a figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG or, by the ending of the path, an SVG; equal figures give equal bytes."""
    if figure.axes and (engine := figure.get_layout_engine()) is not None:
        # Find the layout once for all formats: `savefig` would draw the whole figure twice for it, each time.
        with _missing_letters():
            engine.execute(figure)
        figure.set_layout_engine("none")
    write_atomically(path, svg_of(figure) if path.suffix == ".svg" else _drawn(figure, dpi=DOTS_PER_INCH, format="png"))


def svg_of(figure: Figure) -> bytes:
    """The figure as SVG. Its text stays text, which a browser shows in any script."""
    from matplotlib import rc_context

    font = ["DejaVu Sans", "sans-serif"]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "adagauss", "font.family": font}):
        return _drawn(figure, format="svg", metadata={"Date": None, "Creator": None})


def _drawn(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    with _missing_letters():
        figure.savefig(file, **options)
    return file.getvalue()


@contextmanager
def _missing_letters() -> Iterator[None]:
    """Draw characters that the font lacks as boxes, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message=".*does not currently support .* natively")
        yield


def shown(name: object, width: int = LONGEST_NAME, *, keep_end: bool = False) -> str:
    """A name for a figure: cut to a width, with escaped dollar signs, between which formulas are typeset."""
    return clipped(name, width, keep_end=keep_end).replace("$", r"\$")


def colour(index: int) -> str:
    """The colour of the n-th line."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """The marker of the n-th line; it changes with each use of a colour."""
    return MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def set_title(axes: Axes, text: str, letters: int = 80) -> None:
    """Set a title that is broken into lines of so many letters instead of cut."""
    axes.set_title(textwrap.fill(shown(text, 200), letters), fontsize=9)


def panels(
    count: int, names: Iterable[object] = (), height: float = 3.4, width: float = 3.5
) -> tuple[Figure, list[Axes]]:
    """A row of axes, with room for a legend of these names at their right."""
    longest = max((len(shown(name)) for name in names), default=0)
    figure = new_figure(width * count + 0.7 + 0.075 * longest, height)
    row = list(figure.subplots(1, count, squeeze=False)[0])
    for axes in row:
        style(axes)
    return figure, row


def style(axes: Axes) -> None:
    """Small labels, which fit next to a small panel, and a light grid behind the data."""
    axes.tick_params(which="both", labelsize=8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_fontsize(9)
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3, linewidth=0.6)


def legend(axes: Axes, title: str = "") -> None:
    """Place the legend at the right of the last panel, where it covers nothing."""
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}
    axes.legend(**place, fontsize=8, title=title or None, title_fontsize=8, handlelength=3.2)


def annotate_line(axes: Axes, text: str, height: float) -> None:
    """Mark a number of the paper by a dashed horizontal line with a text."""
    axes.axhline(height, color=GREY, linestyle=(0, (2, 2)), linewidth=1)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}  # curves cross the text
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate(text, (0.02, height), **place, fontsize=7, color=GREY, bbox=box)


# Curves.


@dataclass(frozen=True)
class Panel:
    """One quantity over tasks, or over another axis of whole numbers."""

    quantity: str
    ylabel: str
    axis: str = "after task"
    """Column of the CSV file."""
    xlabel: str = ""
    """The same as ``axis`` if empty."""
    start: int = 1
    scale: float = 1.0
    """Factor of the drawn values."""
    log: bool = False
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Line:
    """The numbers of several seeds, by quantity."""

    label: str
    runs: Sequence[Run]
    values: Sequence[Mapping[str, Numbers]]
    index: int
    """Selects colour, marker and dashes."""
    dashes: str = ""
    columns: Row = field(default_factory=dict)
    """Further columns of the CSV file; ``group`` is the label if it is not given."""


def lines_of(groups: Mapping[str, Sequence[Run]], values: Callable[[Run], Mapping[str, Numbers]]) -> list[Line]:
    """One line per group."""
    found = enumerate(groups.items())
    return [Line(label, runs, [values(run) for run in runs], index) for index, (label, runs) in found]


def draw_curves(
    chosen: Sequence[Panel], lines: Sequence[Line], title: str = "", axes: Sequence[Axes] | None = None
) -> tuple[Figure, list[Axes], list[Row]]:
    """Draw each line in each panel; returns the figure, its axes and the rows of its CSV file.

    Several runs are shown as their mean with a band of one standard deviation.
    """
    if axes is None:
        figure, grid = panels(len(chosen), [line.label for line in lines])
    else:
        grid, figure = list(axes), axes[0].figure  # type: ignore[assignment]  # not a subfigure
    rows: list[Row] = []
    for line in lines:
        for run, values in zip(line.runs, line.values, strict=True):
            for panel in chosen:
                known: Row = {"group": line.label, **line.columns, "seed": run.seed, "quantity": panel.quantity}
                for place, value in enumerate(values[panel.quantity]):
                    if not np.isnan(value):
                        rows.append({**known, panel.axis: panel.start + place, "value": float(value)})
    for one, panel in zip(grid, chosen, strict=True):
        longest = 1
        for line in lines:
            curves = [panel.scale * values[panel.quantity] for values in line.values]
            longest = max(longest, *map(len, curves))
            draw_curve(one, curves, line.label, line.index, dashes=line.dashes, start=panel.start)
        one.set_xticks(range(panel.start, panel.start + longest, -(-longest // (MANY_TICKS // 2))))
        one.set(xlabel=panel.xlabel or panel.axis, ylabel=panel.ylabel)
        if panel.log:
            one.set_yscale("log")
        if panel.limits != (None, None):
            one.set_ylim(*panel.limits)
    legend(grid[-1], title)
    return figure, grid, rows


def draw_curve(
    axes: Axes, runs: Sequence[Numbers], label: str, index: int, *, dashes: str = "", start: int = 1
) -> None:
    """Draw the mean of runs over start, start + 1, …, with a band of one standard deviation if there are several."""
    mean, deviation = mean_and_deviation(runs)
    places = np.arange(start, start + len(mean))
    dashes = dashes or DASHES[index // len(COLOURS) % len(DASHES)]
    dots = marker(index) if len(places) <= MANY_TICKS else ""
    axes.plot(places, mean, dashes, color=colour(index), label=shown(label), marker=dots, markersize=4, linewidth=1.6)
    if np.isfinite(deviation).any():
        axes.fill_between(places, mean - deviation, mean + deviation, color=colour(index), alpha=0.15, linewidth=0)


def mean_and_deviation(runs: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation over runs of any lengths; NaN and shorter runs do not count.

    >>> mean_and_deviation([np.array([1.0, 2.0]), np.array([3.0])])[0].tolist()
    [2.0, 2.0]
    """
    values = np.full((len(runs), max(map(len, runs))), np.nan)
    for row, run in zip(values, runs, strict=True):
        row[: len(run)] = run
    count = np.isfinite(values).sum(0)
    mean = np.where(count > 0, np.nansum(values, 0) / np.maximum(count, 1), np.nan)
    squares = np.nansum((values - mean) ** 2, 0)
    return mean, np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan)


# Bars, matrices and ellipses.


def draw_bars(axes: Axes, values: Mapping[str, Sequence[float]], label: str) -> None:
    """Draw the mean of each name as a bar with its number; of several runs also the deviation and the single ones."""
    for place, numbers in enumerate(values.values()):
        mean, deviation = float(np.mean(numbers)), float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0
        axes.bar(place, mean, width=0.7, color=colour(place), alpha=0.85)
        if deviation:
            axes.errorbar(place, mean, deviation, color="black", capsize=3, linewidth=1)
            look: dict[str, Any] = {"color": "white", "edgecolors": "black", "linewidths": 0.6, "zorder": 3}
            axes.scatter([place] * len(numbers), numbers, s=9, **look)
        text, top = f"{mean:.1f}" if mean < 1000 else f"{mean:.0f}", max(mean + deviation, *numbers)
        axes.annotate(text, (place, top), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8)
    axes.set_ylim(0, max(1.18 * max(map(max, values.values())), 1e-9))
    axes.set_xticks(range(len(values)), [textwrap.fill(shown(name, 36), 12) for name in values])
    if len(values) > 4:
        axes.tick_params(axis="x", labelrotation=35)
        for tick in axes.get_xticklabels():
            tick.set_horizontalalignment("right")
    axes.set_ylabel(label)
    axes.grid(False, axis="x")


def draw_matrix(
    axes: Axes, values: npt.NDArray[np.float64], *, root: bool = False, names: Sequence[object] = ()
) -> AxesImage:
    """Draw percentages as a square of colours, with numbers and names as far as there is room.

    Args:
        axes: where to draw.
        values: percentages; NaN and 0 get no number.
        root: colours follow the square root, so that a few percent are visible.
        names: of the rows and columns; without names they are numbered from 1.
    """
    from matplotlib.colors import PowerNorm

    axes.grid(visible=False)
    image = axes.imshow(values, norm=PowerNorm(0.5 if root else 1.0, 0, 100), cmap="viridis", interpolation="nearest")
    size, dark = len(values), 35 if root else 60
    for row, column in np.argwhere(values >= 0.5) if size <= MOST_NUMBERS else ():
        shade = "white" if values[row, column] < dark else "black"
        axes.text(column, row, f"{values[row, column]:.0f}", ha="center", va="center", color=shade, fontsize=8)
    step = 1 if names else -(-size // MANY_TICKS)
    ticks = list(range(0, size, step))
    labels = [shown(name, 24) for name in names] or [str(tick + 1) for tick in ticks]
    small = 8 if size <= MOST_NUMBERS or not names else 5.0
    axes.set_xticks(ticks, labels, fontsize=small, rotation=90 if names else 0)
    axes.set_yticks(ticks, labels, fontsize=small)
    return image


def draw_ellipse(axes: Axes, mean: Numbers, covariance: Numbers, hue: str, dashes: str) -> None:
    """Draw the contour of a 2-D Gaussian at two standard deviations."""
    from matplotlib.patches import Ellipse

    values, vectors = np.linalg.eigh(covariance)
    width, height = (4 * np.sqrt(np.maximum(values, 0))).tolist()
    angle = math.degrees(math.atan2(vectors[1, 0], vectors[0, 0]))
    look: dict[str, Any] = {"fill": False, "edgecolor": hue, "linestyle": dashes, "linewidth": 1.5}
    axes.add_patch(Ellipse((float(mean[0]), float(mean[1])), width, height, angle=angle, **look))
