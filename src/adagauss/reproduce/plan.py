"""What is reproduced: items of the paper, made of rows that are run on protocols, and the scales they are run at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from adagauss.experiments.protocols import Protocol
from adagauss.experiments.protocols import protocol as protocol_by_name
from adagauss.reproduce.claims import Claim

Settings = Mapping[str, Any]
Size = Literal["paper", "cpu"]


@dataclass(frozen=True)
class Scale:
    """How large everything is. Networks and epochs are those of the protocols; what is run there is up to the items."""

    name: str
    size: Size
    seeds: tuple[int, ...]
    """Seeds of a row, unless the item takes fewer at this scale."""
    recipe: str
    """Recipe of all methods, see `adagauss.experiments.grid`."""
    find: Callable[[str], Protocol]
    """The protocol for a benchmark of the paper, by its name there."""
    note: str
    """What a reader must know before reading the numbers beside the paper's."""
    about: str = ""
    """How large everything is, and how that was chosen: a paragraph of the page."""


CPU = """\
Every benchmark has as many tasks as in the paper, but of two classes each, with all of their images:
`cifar100-10-few` is the first 20 classes of CIFAR-100 in iCaRL's order. A thin ResNet at half the resolution (S = 32)
learns each task for ten epochs. All methods share the recipe `brisk`: SGD with a rate of 0.1 in every task (one
cycle), batches of 64, gradients clipped to norm 1, crops and flips; a method whose authors rotate the images of the
first task does so here too. AdaGauss distils with λ = 2 instead of 10, and analytic classifiers expand features 16
times, as in their papers.

Scale and λ were chosen on held-out training images, never on test images, until AdaGauss came first as in the paper;
[reproduction.md](reproduction.md#how-the-scale-of-the-paper-s-claims-was-chosen) has the trials. So that order was
looked for. What this page can say is whether it also holds for test images and other seeds, and whether the rest of
the claims, which nobody looked at while choosing, hold at such a scale.
"""

SCALES = {
    "paper": Scale("paper", "paper", (0, 1, 2, 3, 4), "own", protocol_by_name, "the paper's scale"),
    "cpu": Scale(
        "cpu",
        "cpu",
        (0, 1, 2),
        "brisk",
        lambda name: protocol_by_name(f"{name}-few"),
        "CPU scale, the same recipe for all methods: compare the order with the paper's, not the numbers",
        CPU,
    ),
}


@dataclass(frozen=True)
class Row:
    """One line of a table, or one curve of a figure."""

    label: str
    method: str = "adagauss"
    settings: Settings = field(default_factory=dict)
    """Changes that are trained."""
    replay: Settings | None = None
    """Changes of memory, drift or classifier that are scored on the networks of the run with ``settings``."""
    paper: Settings = field(default_factory=dict)
    """What finds it in the paper's table."""


@dataclass(frozen=True)
class Where:
    """A benchmark that rows are run on."""

    protocol: str
    seeds: int | None = None
    """How many of the scale's seeds; None for all."""
    only: tuple[str, ...] = ()
    """Labels of the rows; none for all."""


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    name: str
    title: str
    paper: str
    """Where it is in the paper."""
    rows: tuple[Row, ...]
    where: Mapping[Size, tuple[Where, ...]]
    claims: tuple[Claim, ...] = ()
    table: tuple[str, ...] = ()
    """The paper's tables with these rows, the preferred one first."""
    study: str | None = None
    """The study that draws it (see `adagauss.analysis.studies`)."""
    times: bool = False
    """Whether its table shows times."""
    left_out: Mapping[Size, str] = field(default_factory=dict)
    """What is not run at a scale, and why."""
    alias: str = ""
