"""A study draws one figure from the measurements of runs; studies are registered by name, as methods are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adagauss.analysis.measured import Measured, Quantity
from adagauss.errors import AdagaussError
from adagauss.utils.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Groups = Mapping[str, Sequence[Measured]]
"""Runs of one configuration, several seeds, by a label that tells configurations apart."""
Row = dict[str, str | float]


class NotDrawableError(AdagaussError):
    """These runs have nothing to draw in a study; the message says what it would need."""


@dataclass(frozen=True)
class Drawing:
    """A figure and its numbers."""

    figure: Figure
    rows: Sequence[Row]
    """What is drawn, one number per row; they become a CSV file."""
    note: str = ""
    """What a reader must know besides the axes."""


Draw = Callable[[Groups], Drawing]


@dataclass(frozen=True)
class Study:
    """A registered study: what `adagauss analyse --list` shows, and the function that draws it."""

    name: str
    title: str
    paper: str
    """Which figure of the paper it repeats; empty if it has none."""
    claim: str
    """What the paper says this figure shows, or what to look for."""
    needs: frozenset[Quantity]
    draw: Draw

    @property
    def needs_images(self) -> bool:
        return any(quantity.needs_images for quantity in self.needs)

    @property
    def costly(self) -> bool:
        return any(quantity.costly for quantity in self.needs)


_STUDIES: Registry[Study] = Registry("study", "adagauss.analysis.studies")


def register_study(
    name: str, *, title: str, claim: str, needs: Sequence[Quantity], paper: str = ""
) -> Callable[[Draw], Draw]:
    """Register a figure, so that `adagauss analyse` draws it."""

    def register(draw: Draw) -> Draw:
        _STUDIES.register(name, Study(name, title, paper, claim, frozenset(needs), draw), by=draw)
        return draw

    return register


def studies() -> dict[str, Study]:
    """All studies by name: those of the paper first."""
    return dict(sorted(_STUDIES.all().items(), key=lambda item: (not item[1].paper, item[0])))


def find_study(name: str) -> Study:
    """A study by name; an unknown one raises with the nearest known one."""
    return _STUDIES.find(name)
