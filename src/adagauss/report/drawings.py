"""Figures of matplotlib as SVG within the page, in its colours; the same figure gives the same bytes."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adagauss.report.html import Markup
from adagauss.utils.progress import clipped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"
"""Stands for the colour of text in figures, until it becomes that of the page. Black in a figure stays black."""
GREY = "#555555"
"""Small print below figures."""
LONGEST_LABEL = 120
PIXELS_PER_POINT = 1.25
SMALLEST = 0.72
"""A figure is not made smaller than this share of its size; it can be scrolled then."""
THEME: dict[Any, Any] = {
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "legend.edgecolor": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "adagauss",
}
SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
ELEMENTS = frozenset(
    {"svg", "defs", "g", "path", "use", "clipPath", "rect", "circle", "text", "tspan", "image", "line"}
)
ATTRIBUTES = frozenset(
    {"d", "x", "y", "width", "height", "cx", "cy", "r", "x1", "x2", "y1", "y2", "transform", "style", "clip-path"}
    | {"viewBox", "id", "preserveAspectRatio"}
)
LOCAL = re.compile(r"url\(#([\w.-]+)\)")


@contextmanager
def themed() -> Iterator[None]:
    """Figures made within can take the colours of the page."""
    import matplotlib

    with matplotlib.rc_context(THEME):
        yield


def drawn(figure: Figure, key: str, label: str) -> Markup:
    """A figure made within `themed`; ``key`` tells its parts from those of other figures of the page."""
    file = io.BytesIO()
    with themed(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message=".*does not currently support .* natively")
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return inlined(file.getvalue().decode(), key, label)


def inlined(svg: str, key: str, label: str) -> Markup:
    """An SVG as part of a page: only shapes, text and pictures, under names of its own, its ink that of the page."""
    root = ElementTree.fromstring(svg)
    _clean(root, key)
    for attribute in ("width", "height"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-label", clipped(label, LONGEST_LABEL))
    # As large as it was drawn where there is room; where there is not, small print must stay readable.
    width = float(root.get("viewBox", "0 0 600 400").split()[2]) * PIXELS_PER_POINT
    root.set("style", f"width:{width:.0f}px;min-width:{SMALLEST * width:.0f}px")
    text = ElementTree.tostring(root, encoding="unicode")
    # In HTML the names of SVG need no prefix.
    text = re.sub(r'(</?)ns\d+:|\sxmlns:ns\d+="[^"]*"', lambda match: match[1] or "", text)
    return Markup(text.replace(INK, "currentColor").replace(GREY, "var(--quiet)"))


def _clean(element: ElementTree.Element, key: str) -> None:
    for child in list(element):
        if not isinstance(child.tag, str) or child.tag.removeprefix(SVG) not in ELEMENTS:
            element.remove(child)
        else:
            _clean(child, key)
    kept = {}
    for name, value in element.attrib.items():
        if name in (HREF, "href"):
            if value.startswith("#"):
                kept["href"] = f"#{key}-{value[1:]}"
            elif value.startswith("data:image/png;base64,"):
                kept["href"] = value
        elif name == "id":
            # Only what is referred to needs a name; matplotlib also counts groups.
            if not re.fullmatch(r"[A-Za-z.0-9]+_\d+", value):
                kept["id"] = f"{key}-{value}"
        elif name in ATTRIBUTES:
            kept[name] = LOCAL.sub(lambda match: f"url(#{key}-{match[1]})", value)
    element.attrib.clear()
    element.attrib.update(kept)
