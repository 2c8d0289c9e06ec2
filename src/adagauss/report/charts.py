"""Line charts as small SVG whose colours are those of the page, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adagauss.report.html import Markup, join, name, tag

WIDTH, HEIGHT = 600, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 10, 52
TONES = 8
DASHES = (None, "7 4", "2 4", "9 3 2 3")
"""Strokes of the first eight lines, of the next eight, and so on."""
MANY_TICKS = 12


@dataclass(frozen=True)
class Line:
    """One line, in percent: the mean at each task, and the standard deviation if there are several runs."""

    label: str
    values: Sequence[float]
    deviations: Sequence[float] | None = None


def tone(index: int) -> str:
    """The class that gives an element its colour."""
    return f"t{index % TONES}"


def percent_chart(lines: Sequence[Line], tasks: int, *, across: str, up: str) -> Markup:
    """Lines over the tasks 1..``tasks``, from 0 to 100 %, with a legend that says where each ends."""
    drawn = [_line(line, index, tasks) for index, line in enumerate(lines)]
    picture = tag(
        "svg",
        tag("title", f"{up}; {across}"),
        *(_across(share) for share in (0, 20, 40, 60, 80, 100)),
        *(_number(task, tasks) for task in _ticks(tasks)),
        _words(across, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6),
        # The first line is the best one: it is drawn last, over the others.
        *reversed(drawn),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )
    keys = (tag("li", _key(index), name(line.label), f" {line.values[-1]:.1f}") for index, line in enumerate(lines))
    return tag("figure", tag("figcaption", up), picture, tag("ul", *keys, class_="legend"), class_="chart")


def _x(task: float, tasks: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * ((task - 1) / (tasks - 1) if tasks > 1 else 0.5), 1)


def _y(share: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(share, 0.0), 100.0) / 100), 1)


def _line(line: Line, index: int, tasks: int) -> Markup:
    places = [(_x(task, tasks), value) for task, value in enumerate(line.values, 1)]
    path = "M" + "L".join(f"{x} {_y(value)}" for x, value in places)
    dots = (
        tag("circle", tag("title", f"{line.label}, task {task}: {value:.1f} %"), cx=x, cy=_y(value), r=3, class_="dot")
        for task, (x, value) in enumerate(places, 1)
    )
    dash = DASHES[index // TONES % len(DASHES)]
    stroke = tag("path", d=Markup(path), class_="line", stroke_dasharray=dash)
    return tag("g", _band(line, places), stroke, *dots, class_=tone(index))


def _band(line: Line, places: Sequence[tuple[float, float]]) -> Markup | None:
    """One standard deviation to each side; a single run has none."""
    if line.deviations is None:
        return None
    spread = list(zip(places, line.deviations, strict=True))
    above = [f"{x} {_y(value + deviation)}" for (x, value), deviation in spread]
    below = [f"{x} {_y(value - deviation)}" for (x, value), deviation in reversed(spread)]
    return tag("path", d=Markup("M" + "L".join([*above, *below]) + "Z"), class_="band")


def _across(share: int) -> Markup:
    y = _y(share)
    return join(
        [
            tag("path", d=f"M{LEFT} {y}H{WIDTH - RIGHT}", class_="grid"),
            tag("text", f"{share} %" if share == 100 else share, x=LEFT - 6, y=y + 4, text_anchor="end"),
        ]
    )


def _number(task: int, tasks: int) -> Markup:
    return _words(str(task), _x(task, tasks), HEIGHT - BOTTOM + 20)


def _words(words: str, x: float, y: float) -> Markup:
    return tag("text", words, x=round(x, 1), y=y, text_anchor="middle")


def _ticks(tasks: int) -> list[int]:
    step = -(-tasks // MANY_TICKS)
    return list(range(1, tasks + 1, step))


def _key(index: int) -> Markup:
    """A piece of a line, for the legend."""
    dash = DASHES[index // TONES % len(DASHES)]
    stroke = tag("path", d="M0 6H26", class_="line", stroke_dasharray=dash)
    return tag("svg", stroke, viewBox="0 0 26 12", class_=tone(index), aria_hidden="true")
