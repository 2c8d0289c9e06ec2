"""Helpers of all figures: one style, no display, and files that are replaced completely or not at all."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from adagauss.errors import unknown_name
from adagauss.experiments.run import Numbers, Run
from adagauss.utils.files import write_atomically
from adagauss.utils.progress import clipped

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D

COLOURS = (
    "#332288", "#cc6677", "#117733", "#ddaa33", "#88ccee", "#882255",
    "#44aa99", "#999933", "#aa4499", "#000000", "#888888",
)  # fmt: skip
"""Paul Tol's muted scheme with black and grey; they differ under each kind of colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P", "<", "p", ">", "*", "X", "h", "d")
METHODS = (
    "adagauss", "efc", "dsal", "fecam", "fetril", "ssre", "il2a", "pass", "lwf", "ewc", "finetune",
    "adagauss+", "efc++", "acil", "dpcr", "adc", "ldc", "sdc", "analytic", "frozen", "joint", "ranpac",
    "adagauss-linear", "adagauss-affine", "analytic-patches", "analytic-pretrained",
)  # fmt: skip
"""The place of a method gives its colour and marker in all figures."""
GREY = "#555555"
DASHES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")
LONGEST_NAME = 60
LONGEST_DIRECT = 26
"""Letters of a name up to which it is written at the end of its line."""
MANY_TICKS = 20
MOST_NUMBERS = 25
"""Rows of a matrix up to which each cell shows its number."""

SYMBOLS = {
    "A_last": r"$A_\mathrm{last}$",
    "A_inc": r"$A_\mathrm{inc}$",
    "L_AC": r"$L_\mathrm{AC}$",
    "L_CE": r"$L_\mathrm{CE}$",
    "L_KD": r"$L_\mathrm{KD}$",
    "L_PKD": r"$L_\mathrm{PKD}$",
    "‖Σ⁻¹‖_F": r"$\Vert\Sigma^{-1}\Vert_F$",
    "‖Σ − Σ*‖_F": r"$\Vert\Sigma-\Sigma^*\Vert_F$",
    "‖μ − μ*‖₂": r"$\Vert\mu-\mu^*\Vert_2$",
    "KL(N‖N*) + KL(N*‖N)": r"$\mathrm{KL}(N\Vert N^*)+\mathrm{KL}(N^*\Vert N)$",
    "λ₁": r"$\lambda_1$",
    "λᵢ": r"$\lambda_i$",
}
"""Plain symbols, as in CSV files, and how they are typeset."""

Row = dict[str, str | float]
"""A number of a figure with what identifies it; the rows become a CSV file."""


@dataclass(frozen=True)
class Style:
    """Size, text and files of figures for one purpose."""

    points: float = 1.0
    """Factor of the sizes of text, lines and markers."""
    column: float | None = None
    """Width in inches of a figure with one panel; None gives each panel its own width."""
    page: float | None = None
    """Width in inches of a figure with several panels."""
    dots: int = 130
    """Per inch, of PNG files."""
    vector: str = "svg"
    has_title: bool = True
    has_origin: bool = False
    """Whether the note and the origin are below the figure; in other styles they are in a caption file."""


STYLES = {
    "web": Style(has_origin=True),
    "paper": Style(0.85, column=3.35, page=7.0, dots=300, vector="pdf", has_title=False),
    "talk": Style(1.4, dots=200),
}
_STYLE = ContextVar("style", default=STYLES["web"])


def current_style() -> Style:
    """The style of figures that are drawn now."""
    return _STYLE.get()


@contextmanager
def use_style(name: str) -> Iterator[Style]:
    """Draw figures in a style by name: paper, talk or web."""
    if name not in STYLES:
        raise unknown_name("style", name, STYLES)
    token = _STYLE.set(STYLES[name])
    try:
        yield STYLES[name]
    finally:
        _STYLE.reset(token)


def points(size: float) -> float:
    """A size of text or lines in the current style."""
    return size * current_style().points


def new_figure(width: float = 6.0, height: float = 4.0, panels: int = 1) -> Figure:
    """Return a figure of so many panels that needs no display; the style may change its size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = current_style()
    fixed = style.column if panels == 1 else style.page
    # Text does not shrink as much as the width, so a narrow figure gets more height.
    size = (fixed, height * max(fixed / width, 0.62)) if fixed else (width, height)
    figure = Figure(figsize=size, dpi=style.dots, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path, title: str = "", origin: str = "") -> None:
    """Write a PNG, SVG or PDF, by the ending of the path; equal figures give equal bytes.

    Title and origin are stored as metadata of the file.
    """
    if figure.axes and (engine := figure.get_layout_engine()) is not None:
        # Find the layout once for all formats: `savefig` would draw the whole figure twice for it, each time.
        with _missing_letters():
            engine.execute(figure)
        figure.set_layout_engine("none")
    kind = path.suffix.removeprefix(".")
    facts = {"Title": title, "Subject" if kind == "pdf" else "Description": origin}
    metadata: dict[str, str | None] = {key: _printable(text) for key, text in facts.items() if text}
    if kind == "svg":
        write_atomically(path, svg_of(figure, metadata))
        return
    if kind == "pdf":
        metadata.update(CreationDate=None)
    write_atomically(path, _drawn(figure, format=kind, dpi=figure.dpi, metadata=metadata))


def _printable(text: str) -> str:
    """Latin letters, which the metadata of every format can store; others become question marks."""
    return text.encode("latin-1", "replace").decode("latin-1")


def svg_of(figure: Figure, metadata: Mapping[str, str | None] | None = None) -> bytes:
    """The figure as SVG. Its text stays text, which a browser shows in any script."""
    from matplotlib import rc_context

    font = ["DejaVu Sans", "sans-serif"]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "adagauss", "font.family": font}):
        return _drawn(figure, format="svg", metadata={"Date": None, "Creator": None, **(metadata or {})})


def _drawn(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    from matplotlib import rc_context

    with _missing_letters(), rc_context({"pdf.fonttype": 42}):
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
    """A name for a figure: cut to a width, dollar signs escaped, known symbols typeset."""
    return typeset(clipped(name, width, keep_end=keep_end).replace("$", r"\$"))


def typeset(text: str) -> str:
    """The text with `SYMBOLS` as formulas."""
    for plain, formula in SYMBOLS.items():
        text = text.replace(plain, formula)
    return text


def colour(index: int) -> str:
    """The colour of the n-th line."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """The marker of the n-th line; it changes with each use of a colour."""
    return MARKERS[index % len(MARKERS)]


def places(groups: Mapping[str, Sequence[Run]]) -> list[int]:
    """The place of each group in `METHODS`; other methods and further groups of a method take the next free places."""
    found: list[int | None] = []
    for runs in groups.values():
        place = METHODS.index(runs[0].method) if runs[0].method in METHODS else None
        found.append(None if place in found else place)
    free = (place for place in count() if place not in found)
    return [next(free) if place is None else place for place in found]


def set_title(axes: Axes, text: str, letters: int = 80) -> None:
    """Set a title that is broken into lines of so many letters instead of cut."""
    if current_style().has_title:
        axes.set_title(typeset(textwrap.fill(clipped(text, 200).replace("$", r"\$"), letters)), fontsize=points(9))


def panels(
    number: int, names: Iterable[object] = (), height: float = 3.4, width: float = 3.5
) -> tuple[Figure, list[Axes]]:
    """A row of axes, with room for these names at their right."""
    longest = max((min(len(str(name)), LONGEST_DIRECT) for name in names), default=0)
    figure = new_figure(width * number + 0.7 + 0.075 * longest, height, number)
    row = list(figure.subplots(1, number, squeeze=False)[0])
    for axes in row:
        style(axes)
    return figure, row


def style(axes: Axes) -> None:
    """Small labels, which fit next to a small panel, and a light grid behind the data."""
    axes.tick_params(which="both", labelsize=points(8))
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_fontsize(points(9))
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3, linewidth=0.6)


def legend(axes: Axes, title: str = "", entries: Sequence[Artist] = ()) -> None:
    """Name the lines of a panel: each at its end if the names are short and few, otherwise below the figure."""
    named = [one for one in axes.get_lines() if not str(one.get_label()).startswith("_")]
    height = axes.figure.get_size_inches()[1]  # type: ignore[union-attr]  # not a subfigure
    gap = points(8) * 1.3 / 72 / (0.75 * height)
    letters = max((len(str(one.get_label())) for one in named), default=0)
    if not entries and letters <= LONGEST_DIRECT and 1 < len(named) < 1 / gap and all(map(_is_curve, named)):
        _label_lines(axes, named, gap, title)
    elif entries or named:
        legend_below(axes, entries or named, title)


def _is_curve(line: Line2D) -> bool:
    return len(line.get_xdata()) > 1  # type: ignore[arg-type]  # an array


def _label_lines(axes: Axes, lines: Sequence[Line2D], gap: float, title: str) -> None:
    """Write each name at the right end of its line; names that would overlap are moved apart."""
    axes.get_ylim()  # finds the limits, which the next line uses
    to_axes = axes.transScale + axes.transLimits
    ends = []
    for line in lines:
        points_of = np.asarray(line.get_xydata())
        seen = points_of[np.isfinite(points_of).all(1)]
        ends.append(to_axes.transform(seen[-1]) if len(seen) else np.array([1.0, 0.5]))
    order = sorted(range(len(lines)), key=lambda place: ends[place][1])
    heights = moved_apart([float(ends[place][1]) for place in order], gap)
    for place, height in zip(order, heights, strict=True):
        line, (right, end) = lines[place], ends[place]
        leader = {
            "arrowstyle": "-",
            "color": line.get_color(),
            "linewidth": 0.7,
            "shrinkA": 0,
            "shrinkB": 2,
            "relpos": (0, 0.5),
        }
        axes.annotate(
            str(line.get_label()),
            (right, end),
            (1.05, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=points(8),
            color=_darker(str(line.get_color())),
            va="center",
            arrowprops=leader,
        )
    if title:
        top: dict[str, Any] = {"fontsize": points(8), "color": GREY, "va": "center"}
        axes.text(1.05, max(heights[-1] + 1.2 * gap, 1.0), typeset(title), transform=axes.transAxes, **top)


def moved_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights with at least this gap between them, at most 1, near the given ones.

    >>> moved_apart([0.5, 0.5, 1.0], 0.25)
    [0.5, 0.75, 1.0]
    """
    found = list(heights)
    for place in range(1, len(found)):
        found[place] = max(found[place], found[place - 1] + gap)
    found[-1] = min(found[-1], 1.0)
    for place in reversed(range(len(found) - 1)):
        found[place] = min(found[place], found[place + 1] - gap)
    return found


def _darker(hue: str) -> str:
    """A colour that is readable as small text on white."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(hue)
    return to_hex((0.75 * red, 0.75 * green, 0.75 * blue))


def legend_below(axes: Axes, entries: Sequence[Artist], title: str = "") -> None:
    """Place a legend in columns below the figure, which becomes higher."""
    figure: Any = axes.figure
    names = [textwrap.fill(str(one.get_label()), LONGEST_NAME) for one in entries]
    width, height = figure.get_size_inches()
    letters = max(len(line) for name in names for line in name.split("\n"))
    columns = max(1, min(len(names), int(width / (points(8) * (letters * 0.0085 + 0.075)))))
    lines = sum(1 + name.count("\n") for name in names) / columns + bool(title)
    figure.set_size_inches(width, height + points(8) * 0.0195 * (math.ceil(lines) + 1))
    text: dict[str, Any] = {"fontsize": points(8), "title_fontsize": points(8), "handlelength": 3.2}
    figure.legend(
        list(entries), names, loc="outside lower center", ncols=columns, title=typeset(title), frameon=False, **text
    )


def set_log_scale(axes: Axes, which: Literal["x", "y"] = "y") -> None:
    """Set a log scale whose ticks are numbers also if the data span less than a few decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = axis.get_view_interval()
    if low > 0 and high / low < 300:
        steps = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 4, 5, 6, 8)
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def annotate_line(axes: Axes, text: str, height: float) -> None:
    """Mark a number of the paper by a dashed horizontal line with a text."""
    axes.axhline(height, color=GREY, linestyle=(0, (2, 2)), linewidth=1)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}  # curves cross the text
    place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate(typeset(text), (0.02, height), **place, fontsize=points(7), color=GREY, bbox=box)


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
    found = zip(places(groups), groups.items(), strict=True)
    return [Line(label, runs, [values(run) for run in runs], index) for index, (label, runs) in found]


def draw_curves(
    chosen: Sequence[Panel],
    lines: Sequence[Line],
    title: str = "",
    axes: Sequence[Axes] | None = None,
    entries: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes], list[Row]]:
    """Draw each line in each panel; returns the figure, its axes and the rows of its CSV file.

    Several runs are shown as their mean with a band of one standard deviation; both are geometric in a log panel.

    Args:
        chosen: the panels.
        lines: what to draw in each of them.
        title: of the legend.
        axes: where to draw; a new figure by default.
        entries: of the legend; by default one for each line.
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
            draw_curve(one, curves, line.label, line.index, dashes=line.dashes, start=panel.start, log=panel.log)
        most = MANY_TICKS // 2 if current_style().page is None else MANY_TICKS // 4
        one.set_xticks(range(panel.start, panel.start + longest, -(-longest // most)))
        set_labels(one, panel.xlabel or panel.axis, panel.ylabel, len(chosen) + (len(chosen) < len(one.figure.axes)))
        if panel.log:
            set_log_scale(one)
        if panel.limits != (None, None):
            one.set_ylim(*panel.limits)
    legend(grid[-1], title, entries)
    return figure, grid, rows


def set_labels(axes: Axes, x: str, y: str, panels: int = 1) -> None:
    """Label the axes of one of some panels in a row; lines are broken so that they are not longer than the axis."""
    width, height = axes.figure.get_size_inches()  # type: ignore[union-attr]  # not a subfigure
    letter = 0.5 * points(9) / 72

    def folded(text: str, inches: float) -> str:
        parts = (textwrap.wrap(line, max(8, int(inches / letter)), break_long_words=False) for line in text.split("\n"))
        return typeset("\n".join(part for lines in parts for part in lines))

    axes.set(xlabel=folded(x, 0.75 * width / panels), ylabel=folded(y, 0.62 * height))


def draw_curve(
    axes: Axes,
    runs: Sequence[Numbers],
    label: str,
    index: int,
    *,
    dashes: str = "",
    start: int = 1,
    log: bool = False,
) -> None:
    """Draw the mean of runs over start, start + 1, …, with a band of one standard deviation if there are several."""
    if log:
        mean, deviation = mean_and_deviation([np.log(np.where(run > 0, run, np.nan)) for run in runs])
        low, mean, high = np.exp(mean - deviation), np.exp(mean), np.exp(mean + deviation)
    else:
        mean, deviation = mean_and_deviation(runs)
        low, high = mean - deviation, mean + deviation
    x = np.arange(start, start + len(mean))
    dashes = dashes or DASHES[index // len(COLOURS) % len(DASHES)]
    look: dict[str, Any] = {"marker": marker(index) if len(x) <= MANY_TICKS else "", "markersize": points(4)}
    axes.plot(x, mean, dashes, color=colour(index), label=shown(label), linewidth=points(1.6), **look)
    if np.isfinite(deviation).any():
        axes.fill_between(x, low, high, color=colour(index), alpha=0.15, linewidth=0)


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
            axes.scatter([place] * len(numbers), numbers, s=points(9), **look)
        text, top = f"{mean:.1f}" if mean < 1000 else f"{mean:.0f}", max(mean + deviation, *numbers)
        axes.annotate(text, (place, top), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=points(8))
    axes.set_ylim(0, max(1.18 * max(map(max, values.values())), 1e-9))
    axes.set_xticks(range(len(values)), [textwrap.fill(shown(name, 36), 9) for name in values])
    if len(values) > 4 or current_style().page:
        axes.tick_params(axis="x", labelrotation=35)
        for tick in axes.get_xticklabels():
            tick.set_horizontalalignment("right")
    set_labels(axes, "", label)
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
        axes.text(column, row, f"{values[row, column]:.0f}", ha="center", va="center", color=shade, fontsize=points(8))
    step = 1 if names else -(-size // MANY_TICKS)
    ticks = list(range(0, size, step))
    labels = [shown(name, 24) for name in names] or [str(tick + 1) for tick in ticks]
    small = points(8) if size <= MOST_NUMBERS or not names else 5.0
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
