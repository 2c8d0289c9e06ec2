"""Helpers of all figures: one style, small multiples of curves, bars and matrices, and reproducible files."""

from __future__ import annotations

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib.style
import numpy as np
import numpy.typing as npt
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from adagauss.errors import unknown_name
from adagauss.experiments.run import Groups, Numbers, Run
from adagauss.utils.files import write_atomically
from adagauss.utils.progress import clipped

COLUMN, PAGE = 3.4, 7.0
"""Widths in inches of a figure with one panel, and with several next to each other."""
STYLES: Mapping[str, dict[str, Any]] = {
    "web": {},
    "paper": {"figure.dpi": 300, "savefig.format": "pdf"},
    "talk": {"figure.dpi": 300, "font.size": 11, "lines.linewidth": 2, "lines.markersize": 5},
}
"""Changes of ``templates/figures.mplstyle``; ``savefig.format`` is the format in addition to PNG."""

COLOURS = (
    "#332288", "#cc6677", "#117733", "#ddaa33", "#88ccee", "#882255",
    "#44aa99", "#999933", "#aa4499", "#000000", "#888888",
)  # fmt: skip
"""Paul Tol's muted scheme with black and grey; they differ under each kind of colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P", "<", "p", ">", "*", "X", "h", "d")
METHODS = (
    "adagauss", "efc", "dsal", "fecam", "fetril", "ssre", "il2a", "pass", "lwf", "ewc", "finetune",
    "adagauss+", "efc++", "acil", "dpcr", "adc", "ldc", "sdc", "analytic", "frozen", "joint", "ranpac",
    "adagauss-linear", "adagauss-affine", "analytic-patches", "analytic-pretrained", "bicyc",
)  # fmt: skip
"""The place of a method gives its colour and marker in all figures."""
GREY = "#555555"
LONGEST_NAME = 60
LONGEST_NEXT = 24
"""Letters of a name up to which the names of lines are next to the figure."""
MOST_MARKERS = 20
MOST_NUMBERS = 25
"""Rows of a matrix up to which each cell shows its number."""

Row = dict[str, str | float]
"""A number of a figure with what identifies it; the rows become a CSV file."""


class Drawing(NamedTuple):
    """A figure and its numbers."""

    figure: Figure
    rows: Sequence[Row]
    note: str = ""
    """What the axes do not tell."""


def use_style(name: str = "web") -> AbstractContextManager[None]:
    """Draw figures in a style by name: paper (PDF), talk (large text) or web (SVG)."""
    if name not in STYLES:
        raise unknown_name("style", name, STYLES)
    return matplotlib.style.context([Path(__file__).with_name("templates") / "figures.mplstyle", STYLES[name]])


def save_figure(figure: Figure, path: Path, title: str = "", origin: str = "") -> None:
    """Write a PNG, SVG or PDF with title and origin as metadata; equal figures give equal bytes."""
    kind, file = path.suffix.removeprefix("."), io.BytesIO()
    facts = {"Title": title, "Subject" if kind == "pdf" else "Description": origin}
    # Every format can store Latin letters; others become question marks.
    known = {key: text.encode("latin-1", "replace").decode("latin-1") for key, text in facts.items() if text}
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # characters that the font lacks are boxes
        figure.savefig(file, format=kind, metadata={**known, **TIMES[kind]})
    write_atomically(path, file.getvalue())


TIMES: Mapping[str, Mapping[str, None]] = {
    "png": {},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None},
}
"""Metadata that a file must not have, so that equal figures give equal bytes."""


def shown(name: object, width: int = LONGEST_NAME, *, fold: int = LONGEST_NAME, keep_end: bool = False) -> str:
    """A name for a figure: cut to a width, folded, dollar signs escaped, known symbols typeset."""
    cut = clipped(name, width, keep_end=keep_end)
    return typeset(textwrap.fill(cut, fold, break_long_words=len(cut) > fold).replace("$", r"\$"))


def typeset(text: str) -> str:
    """The text with accuracies and losses as formulas.

    >>> typeset("A_last without L_AC")
    '$A_\\\\mathrm{last}$ without $L_\\\\mathrm{AC}$'
    """
    return re.sub(r"\b([AL])_(last|inc|AC|PKD)\b", r"$\1_\\mathrm{\2}$", text)


def colour(index: int) -> str:
    """The colour of the n-th line."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """The marker of the n-th line; it changes with each use of a colour."""
    return MARKERS[index % len(MARKERS)]


def places(groups: Groups) -> list[int]:
    """The place of each group in `METHODS`; other methods and further groups of a method take the next free places."""
    found: list[int | None] = []
    for runs in groups.values():
        place = METHODS.index(runs[0].method) if runs[0].method in METHODS else None
        found.append(None if place in found else place)
    free = (place for place in itertools.count() if place not in found)
    return [next(free) if place is None else place for place in found]


def panels(columns: int = 1, rows: int = 1, height: float = 2.1, **options: Any) -> tuple[Figure, list[list[Axes]]]:
    """A grid of axes, as wide as a column of text for one panel and as the page for several; height is in inches."""
    figure = Figure(figsize=(PAGE if columns > 1 else COLUMN, height * rows))
    grid: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False, **options).tolist()
    return figure, grid


# Names of lines.


def name_lines(axes: Axes, title: str = "") -> None:
    """Name the lines of a panel from the highest end down, next to the figure, or below it if the names are long."""
    lines = sorted((one for one in axes.get_lines() if not str(one.get_label()).startswith("_")), key=_last_height)
    if not lines:
        return
    figure: Any = axes.figure
    size = rcParams["font.size"] / 72
    longest = max(len(str(one.get_label())) for one in lines)
    if longest <= LONGEST_NEXT and 1.5 * size * len(lines) < figure.get_figheight():
        figure.legend(handles=lines[::-1], loc="outside right center", title=typeset(title))
        return
    columns = max(1, min(len(lines), int(figure.get_figwidth() / (size * (0.5 * longest + 4)))))
    rows = -(-len(lines) // columns) + 1 + bool(title)
    figure.set_figheight(figure.get_figheight() + 1.3 * size * rows)
    figure.legend(handles=lines[::-1], loc="outside lower center", ncols=columns, title=typeset(title))


def _last_height(line: Line2D) -> float:
    """Where a line ends; at the bottom if it has no point."""
    heights = np.asarray(line.get_ydata(), dtype=np.float64)
    return float(next(iter(heights[np.isfinite(heights)][::-1]), -np.inf))


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
    limits: tuple[float | None, float | None] | None = None


@dataclass(frozen=True)
class Line:
    """The numbers of several seeds, by quantity."""

    label: str
    runs: Sequence[Run]
    values: Sequence[Mapping[str, Numbers]]
    index: int
    """Selects colour and marker."""
    columns: Row = field(default_factory=dict)
    """Further columns of the CSV file; ``group`` is the label if it is not given."""


def lines_of(groups: Groups, values: Callable[[Run], Mapping[str, Numbers]]) -> list[Line]:
    """One line per group."""
    found = zip(places(groups), groups.items(), strict=True)
    return [Line(label, runs, [values(run) for run in runs], index) for index, (label, runs) in found]


def draw_curves(chosen: Sequence[Panel], lines: Sequence[Line], note: str = "", title: str = "") -> Drawing:
    """Draw each line in each panel of a new figure; ``title`` is that of the names of the lines."""
    columns = 2 if len(chosen) == 4 else len(chosen)
    figure, grid = panels(columns, len(chosen) // columns)
    draw_panels([axes for row in grid for axes in row], chosen, lines)
    name_lines(grid[-1][-1], title)
    return Drawing(figure, curve_rows(chosen, lines), note)


def small_multiples(panel: Panel, lines: Sequence[Line]) -> tuple[Figure, list[Axes]]:
    """A panel for each line, with the others in light grey behind it."""
    columns = min(4, len(lines))
    figure, grid = panels(columns, -(-len(lines) // columns), 1.3, sharex=True, sharey=True)
    every = [axes for row in grid for axes in row]
    for axes in every[len(lines) :]:
        axes.set_axis_off()
    for axes, line in zip(every, lines, strict=False):
        for other in lines:
            mean, _ = mean_and_deviation([panel.scale * values[panel.quantity] for values in other.values])
            axes.plot(np.arange(panel.start, panel.start + len(mean)), mean, color="#cccccc", linewidth=0.6, zorder=0)
        draw_panels([axes], [panel], [line])
        axes.set(xlabel="", ylabel="", title=shown(line.label, fold=24))
    figure.set_figheight(max(figure.get_figheight(), 1.9))  # room for the label of the y axis
    figure.supxlabel(typeset(panel.xlabel or panel.axis), fontsize="medium")
    figure.supylabel(typeset(panel.ylabel), fontsize="medium")
    return figure, every[: len(lines)]


def curve_rows(chosen: Sequence[Panel], lines: Sequence[Line]) -> list[Row]:
    """The numbers of lines in panels."""
    rows: list[Row] = []
    for line in lines:
        for run, values in zip(line.runs, line.values, strict=True):
            for panel in chosen:
                known: Row = {"group": line.label, **line.columns, "seed": run.seed, "quantity": panel.quantity}
                numbers = enumerate(values[panel.quantity], panel.start)
                rows += [{**known, panel.axis: x, "value": float(value)} for x, value in numbers if not np.isnan(value)]
    return rows


def draw_panels(axes: Sequence[Axes], chosen: Sequence[Panel], lines: Sequence[Line]) -> None:
    """Draw each line in each panel.

    Several runs are shown as their mean with a band of one standard deviation; both are geometric in a log panel.
    """
    for one, panel in zip(axes, chosen, strict=True):
        for line in lines:
            curves = [panel.scale * values[panel.quantity] for values in line.values]
            if panel.log:
                curves = [np.log(np.where(curve > 0, curve, np.nan)) for curve in curves]
            mean, deviation = mean_and_deviation(curves)
            low, middle, high = (np.exp(y) if panel.log else y for y in (mean - deviation, mean, mean + deviation))
            x, look = np.arange(panel.start, panel.start + len(mean)), colour(line.index)
            dot = marker(line.index) if len(x) <= MOST_MARKERS else ""
            one.plot(x, middle, color=look, marker=dot, label=shown(line.label))
            if np.isfinite(deviation).any():
                one.fill_between(x, low, high, color=look, alpha=0.15, linewidth=0)
        one.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
        one.set(xlabel=panel.xlabel or panel.axis, ylabel=typeset(panel.ylabel))
        seen = [values[panel.quantity] for line in lines for values in line.values]
        if not any((values > 0 if panel.log else np.isfinite(values)).any() for values in seen):
            one.set_axis_off()
        elif panel.log:
            set_log_scale(one, "y")
        if panel.limits is not None:
            one.set_ylim(*panel.limits)


def mean_and_deviation(runs: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation over runs of any lengths; NaN and shorter runs do not count.

    >>> mean_and_deviation([np.array([1.0, 2.0]), np.array([3.0])])[0].tolist()
    [2.0, 2.0]
    """
    values = np.full((len(runs), max(map(len, runs))), np.nan)
    for row, run in zip(values, runs, strict=True):
        row[: len(run)] = run
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # columns without numbers
        return np.nanmean(values, 0), np.nanstd(values, 0, ddof=1)


def set_log_scale(axes: Axes, which: Literal["x", "y"]) -> None:
    """Set a log scale whose ticks are numbers also if the data span less than a few decades."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    if low > 0 and high / low < 300:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > 4 else (1, 1.5, 2, 3, 4, 6)))
        axis.set_major_formatter(EngFormatter(sep="") if low >= 1000 else "{x:g}")
        axis.set_minor_formatter(NullFormatter())


def annotate_line(axes: Axes, text: str, height: float) -> None:
    """Mark a number of the paper by a dashed horizontal line with a text."""
    axes.axhline(height, color=GREY, linestyle=(0, (2, 2)), linewidth=0.8)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}  # curves cross the text
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (0, 2), "textcoords": "offset points"}
    axes.annotate(typeset(text), (0.02, height), **place, fontsize="x-small", color=GREY, bbox=box)


# Bars and matrices.


Bars = Mapping[str, Sequence[float]]
"""Numbers of several runs by name."""


def draw_bars(axes: Axes, values: Bars, label: str, looks: Mapping[str, int] | None = None, limit: float = 0.0) -> None:
    """Draw the mean of each name as a bar with its number; of several runs also the deviation and the single ones.

    ``looks`` are the places of their colours; ``limit`` is the largest number of all panels with this axis.
    """
    ends = [limit]
    for place, (name, numbers) in enumerate(values.items()):
        mean, deviation = (one[0] for one in mean_and_deviation([np.array([number]) for number in numbers]))
        look: dict[str, Any] = {"color": colour(looks[name] if looks else place), "alpha": 0.85, "capsize": 2}
        axes.barh(place, mean, 0.7, xerr=deviation if deviation > 0 else None, **look)
        ends += [*numbers, mean + max(0.0, np.nan_to_num(deviation))]
        number = f"{mean:.1f}" if mean < 1000 else f"{mean:.0f}"
        at_edge: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(0.99, place, number, **at_edge, fontsize="small")  # clear of the single runs and the paper's number
        if deviation > 0:
            axes.plot(numbers, [place] * len(numbers), "o", color="white", markeredgecolor="black", markeredgewidth=0.5)
    axes.set(xlim=(0, max(1.2 * max(ends), 1e-9)), xlabel=typeset(label))
    axes.set(ylim=(len(values) - 0.5, -0.5), yticks=range(len(values)))
    axes.set_yticklabels([shown(name, 40, fold=24) for name in values])
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid(False, axis="y")


def bar_figure(
    panels_of_bars: Mapping[str, Bars],
    looks: Mapping[str, int] | None = None,
    papers: Mapping[str, Mapping[str, float]] | None = None,
) -> Figure:
    """One panel per quantity; accuracies have one range. A black line is the number of the paper."""
    names = list(next(iter(panels_of_bars.values())))
    papers = papers or {}
    figure, (grid,) = panels(len(panels_of_bars), height=0.7 + 0.23 * max(len(names), 3), sharey=True)
    tops = {
        key: max(itertools.chain(*bars.values(), papers.get(key, {}).values())) for key, bars in panels_of_bars.items()
    }
    highest = max((top for key, top in tops.items() if key.endswith("%")), default=0.0)
    for axes, (quantity, bars) in zip(grid, panels_of_bars.items(), strict=True):
        for name, number in papers.get(quantity, {}).items():
            middle = names.index(name)
            axes.plot([number] * 2, [middle - 0.4, middle + 0.4], color="black", linewidth=1.2)
        draw_bars(axes, bars, quantity, looks, highest if quantity.endswith("%") else tops[quantity])
    return figure


def draw_matrix(axes: Axes, values: npt.NDArray[np.float64], names: Sequence[object] = ()) -> AxesImage:
    """Draw percentages as a square of colours, with numbers and names as far as there is room.

    Colours follow the square root, so that a few percent are visible. NaN and 0 get no number. Without names, rows and
    columns are numbered from 1.
    """
    axes.grid(visible=False)
    image = axes.imshow(values, norm=PowerNorm(0.5, 0, 100), cmap="viridis", interpolation="nearest")
    size = len(values)
    for row, column in np.argwhere(values >= 0.5) if size <= MOST_NUMBERS else ():
        shade = "white" if values[row, column] < 35 else "black"
        number = f"{values[row, column]:.0f}"
        axes.text(column, row, number, ha="center", va="center", color=shade, fontsize="small")
    ticks = range(0, size, 1 if names else -(-size // 10))
    labels = [shown(name, 24) for name in names] or [str(tick + 1) for tick in ticks]
    small = "x-small" if size > MOST_NUMBERS and names else None
    axes.set_xticks(ticks, labels, fontsize=small, rotation=90 if names else 0)
    axes.set_yticks(ticks, labels, fontsize=small)
    return image
