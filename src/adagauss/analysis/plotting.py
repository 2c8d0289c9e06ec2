"""What all figures share: no display, names shown as they are, files replaced completely or not at all."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagauss.utils.files import write_atomically
from adagauss.utils.progress import clipped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_NAME = 28
DOTS_PER_INCH = 130
MANY_TICKS = 20


def new_figure(width: float = 6.0, height: float = 4.0) -> Figure:
    """A figure that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG or, by the ending of the path, an SVG: equal figures give equal bytes.

    A PNG shows characters that the font lacks as boxes, without a warning for each. The text of an SVG stays text,
    which whoever shows it draws in any script.
    """
    from matplotlib import rc_context

    drawn = io.BytesIO()
    vector = path.suffix == ".svg"
    settings: dict[str, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "adagauss",
        "font.family": ["DejaVu Sans", "sans-serif"],
    }
    with warnings.catch_warnings(), rc_context(settings if vector else {}):  # type: ignore[arg-type]  # names of settings
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message=".*does not currently support .* natively")
        _arrange(figure)
        if vector:
            figure.savefig(drawn, format="svg", metadata={"Date": None})
        else:
            figure.savefig(drawn, dpi=DOTS_PER_INCH, format="png")
    write_atomically(path, drawn.getvalue())


def _arrange(figure: Figure) -> None:
    """Find the layout once for all formats: `savefig` would draw the whole figure twice for it, each time."""
    if figure.axes and (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def shown(name: object, width: int = LONGEST_NAME, *, keep_end: bool = False) -> str:
    """A name for a figure: cut to a width, and with escaped dollar signs, between which formulas are typeset."""
    return clipped(name, width, keep_end=keep_end).replace("$", r"\$")


def set_title(axes: Axes, text: str) -> None:
    """A title that is broken into lines rather than cut."""
    axes.set_title(shown(text, 200), fontsize=9, wrap=True)


def number_ticks(axes: Axes, count: int, *, both: bool = False) -> None:
    """Ticks 1..count at the positions 0..count-1, as many as there is room for."""
    step = -(-count // MANY_TICKS)
    ticks = list(range(0, count, step))
    axes.set_xticks(ticks, [str(tick + 1) for tick in ticks])
    if both:
        axes.set_yticks(ticks, [str(tick + 1) for tick in ticks])


def name_ticks(axes: Axes, names: Sequence[object], size: float) -> None:
    """A name at each row, and at each column upright."""
    ticks = range(len(names))
    labels = [shown(name, 24) for name in names]
    axes.set_xticks(ticks, labels, fontsize=size, rotation=90)
    axes.set_yticks(ticks, labels, fontsize=size)
