"""HTML in which every text is escaped: only what this module made is markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from adagauss.utils.progress import clipped

LONGEST = 400
"""Columns of one text; a longer one, which nobody wants to read, is cut."""
VOID = frozenset({"meta", "br", "col", "img"})
"""Elements without an end."""


class Markup(str):
    """HTML that is ready to be put into a page."""

    __slots__ = ()


Child = object
"""Markup is put in as it is; anything else as text."""


def text(value: object, width: int = LONGEST) -> Markup:
    r"""Any text, harmless: no markup, no control characters, nothing that turns the direction of what follows.

    >>> text("<b>\x1b & \u202e")
    '&lt;b&gt;\\x1b &amp; \\u202e'
    """
    return Markup(html.escape(clipped(value, width)))


def tag(element: str, /, *children: Child, **attributes: object) -> Markup:
    """An element; attributes that are None or False are left out, ``class_`` is ``class``, ``_`` is ``-``.

    >>> tag("p", "1 < 2", tag("b", "yes"), class_="note", hidden=True)
    '<p class="note" hidden>1 &lt; 2<b>yes</b></p>'
    """
    opened = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if element in VOID:
        return Markup(f"<{element}{opened}>")
    return Markup(f"<{element}{opened}>{join(children)}</{element}>")


def join(children: Iterable[Child], between: str = "") -> Markup:
    """Several pieces, one after the other; None is nothing."""
    pieces = (child if isinstance(child, Markup) else text(child) for child in children if child is not None)
    return Markup(html.escape(between).join(pieces))


def name(label: object, width: int = 110) -> Markup:
    """The name of a class, a method or a file: its direction of writing does not touch the text around it.

    A name that is cut is shown whole when the pointer rests on it.
    """
    whole = clipped(label, LONGEST)
    shown = clipped(label, width)
    return tag("bdi", shown, title=whole if whole != shown else None)


def table(
    heads: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    *,
    label: str,
    words: Sequence[int] = (0,),
    class_: str | None = None,
) -> Markup:
    """A table that scrolls within itself where it is too wide; columns not in ``words`` hold numbers.

    A cell that is a ``td`` or ``th`` already is taken as it is.
    """
    above = tag("tr", *(tag("th", head, scope="col", class_=_kind(place, words)) for place, head in enumerate(heads)))
    body = (tag("tr", *(_cell(cell, place, words) for place, cell in enumerate(row))) for row in rows)
    made = tag("table", tag("thead", above), tag("tbody", *body), class_=class_)
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=label)


def details(summary: Child, *content: Child, opened: bool = False) -> Markup:
    """Content that is shown when its summary is clicked; this needs no script."""
    return tag("details", tag("summary", summary), *content, open=opened)


def _cell(cell: Child, place: int, words: Sequence[int]) -> Markup:
    if isinstance(cell, Markup) and cell.startswith(("<td", "<th")):
        return cell
    return tag("td", cell, class_=_kind(place, words))


def _kind(place: int, words: Sequence[int]) -> str | None:
    return None if place in words else "number"


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{value if isinstance(value, Markup) else text(value)}"'
