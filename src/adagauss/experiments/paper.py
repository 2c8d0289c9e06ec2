"""The tables and figures of the AdaGauss paper: rows, benchmarks and claims as data, and the paper's own numbers.

The items are in ``paper_items.yaml``, the numbers in ``paper_results.json``; `adagauss.experiments.reproduce` makes the
tables and figures. A run that two items need is made once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from itertools import product
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import TypeAdapter

from adagauss.data.stream import StreamConfig
from adagauss.errors import unknown_name
from adagauss.experiments.config import SHARED_RECIPE
from adagauss.experiments.protocols import PROTOCOLS, Protocol, protocol
from adagauss.experiments.run import Run
from adagauss.methods import method_info
from adagauss.methods.base import USER

Settings = Mapping[str, Any]
Size = Literal["paper", "cpu"]
Summary = Literal["mean", "first", "last", "min", "spread"]
Relation = Literal["highest", "lowest", "decreasing", "at least", "rising", "falling"]
BEYOND = "beyond the paper"
"""The place of items that the paper does not have."""
PLACE = re.compile(r"(Fig\.|Table) (\d+)")
ALL = "all"


@dataclass(frozen=True)
class Row:
    """One line of a table, or one curve of a figure."""

    label: str
    method: str = "adagauss"
    settings: Settings = field(default_factory=dict)
    """Changes that need training."""
    rescore: Settings | None = None
    """Changes of memory, drift or classifier, scored on the networks of the run with ``settings``."""
    paper: Settings = field(default_factory=dict)
    """Columns that identify the row in the paper's table."""
    per_image: bool = False
    """Whether the paper's number of the row weights test images equally, as the published code of its method does."""


@dataclass(frozen=True)
class Benchmark:
    """A protocol that rows are run on."""

    protocol: str
    seeds: int | None = None
    """How many of the scale's seeds; None for all."""
    only: tuple[str, ...] = ()
    """Labels of the rows; empty for all."""


@dataclass(frozen=True)
class Value:
    """A number per seed: the rows with these columns, of the table or of the figure's CSV file, summarised."""

    name: str
    columns: Mapping[str, str]
    """``row`` and ``quantity`` find a number of the table; a figure has its own columns."""
    summary: Summary = "mean"
    """The rows of a file are ordered by task: ``first`` and ``last`` are those of the first and the last task.

    ``spread`` is the largest over the smallest number of each task, averaged over tasks.
    """
    value: str = "value"
    """Column of the number."""

    @property
    def row(self) -> str | None:
        """The row of the table that it belongs to; None for a number of a figure."""
        return self.columns.get("row")


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that numbers can confirm or contradict.

    ``highest`` and ``lowest`` compare the first value with each of the others, ``decreasing`` compares all in their
    order, ``at least`` compares the only value with the bound, and ``rising`` and ``falling`` test the trend of the
    only value over tasks by Kendall's τ.
    """

    text: str
    relation: Relation
    values: tuple[Value, ...]
    bound: float | Literal["features"] = 0.0
    """``features`` is S, the number of features of the networks."""
    change: float | None = None
    """The paper's relative difference of the nearest other value, such as -0.72, quoted in the verdict."""
    biased: Mapping[Size, str] = field(default_factory=dict)
    """Why the values cannot be compared at a scale, for example because one side alone was tuned."""


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    name: str
    title: str
    paper: str
    """Where it is in the paper."""
    rows: tuple[Row, ...]
    benchmarks: Mapping[Size, tuple[Benchmark, ...]]
    claims: tuple[Claim, ...] = ()
    tables: tuple[str, ...] = ()
    """The paper's tables with these rows, the preferred one first."""
    study: str | None = None
    """The figure of `adagauss analyse` that draws it."""
    quantities: tuple[str, ...] = ("a_last", "a_inc")
    """The columns of its table."""
    deviations: Mapping[Size, str] = field(default_factory=dict)
    """How the item differs from the paper's at a scale, and why."""

    @property
    def aliases(self) -> list[str]:
        """The numbers of its tables and figures in the paper, such as ``fig5``."""
        return [kind.strip(".").lower() + number for kind, number in PLACE.findall(self.paper)]


@dataclass(frozen=True)
class Scale:
    """A scale of the reproduction: protocols, seeds and the training recipe."""

    name: str
    seeds: tuple[int, ...]
    """Seeds of a row, unless a benchmark takes fewer."""
    size: Size
    recipe: str
    """Recipe of all methods, see `adagauss.experiments.grid`."""
    find: Callable[[str], Protocol]
    """The protocol of a benchmark at this scale, by the benchmark's name in the paper."""
    note: str
    """How the numbers compare with the paper's; part of every caption."""
    about: str = ""
    """How the scale was chosen: a paragraph of the Markdown page."""


@cache
def _resource(name: str) -> dict[str, Any]:
    text = resources.files("adagauss.experiments").joinpath(name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    return data


ITEMS = _resource("paper_items.yaml")
SCALES = {
    name: Scale(name, tuple(facts.pop("seeds")), find=partial(protocol, scale=facts.pop("protocols")), **facts)
    for name, facts in ((name, dict(facts)) for name, facts in ITEMS["scales"].items())
}


@cache
def items() -> dict[str, Item]:
    """All items by name."""
    found = TypeAdapter(list[Item]).validate_python([_item(entry) for entry in ITEMS["items"]])
    return {item.name: item for item in found}


def _item(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the file with its abbreviations expanded: names of protocols and of rows."""
    benchmarks = {
        size: [{"protocol": one} if isinstance(one, str) else one for one in chosen]
        for size, chosen in entry["benchmarks"].items()
    }
    claims = []
    for claim in map(dict, entry.get("claims", ())):
        quantity = claim.pop("quantity", "a_last")
        values = [
            {"name": value, "columns": {"row": value, "quantity": quantity}} if isinstance(value, str) else value
            for value in claim["values"]
        ]
        claims.append({**claim, "values": values})
    return {**entry, "benchmarks": benchmarks, "claims": claims}


def find_items(names: Sequence[str]) -> list[Item]:
    """Items by name, or by a number of the paper; ``all`` for every one.

    >>> [item.name for item in find_items(["fig3", "ranks", "ablation", "table5", "fig10"])]
    ['ranks', 'ablation', 'table1', 'distances']
    """
    known = items() | {alias: item for item in items().values() for alias in item.aliases}
    found: dict[str, Item] = {}
    for name in names:
        if name != ALL and name not in known:
            raise unknown_name("table or figure", name, [*known, ALL])
        found |= items() if name == ALL else {known[name].name: known[name]}
    return list(found.values())


# The paper's own numbers.

CHOSEN = {USER, "epochs", SHARED_RECIPE}
"""Origins of settings that neither the method nor its data or protocol imply."""


class Published(NamedTuple):
    """A pair of numbers of the paper, in percent."""

    a_last: float
    a_inc: float


def published(run: Run) -> Published | None:
    """The paper's numbers for a run, if it follows a protocol of the paper with the method's own settings."""
    config, origins = run.config, run.origins
    protocols = (one for one in PROTOCOLS.values() if one.stream == config.stream and one.scale == config.scale)
    chosen = next((one for one in protocols if one.layer_name in origins.values()), None)
    changed = {key for key, layer in origins.items() if layer in CHOSEN} - {"backbone.weights"}
    # Which weight file it is cannot be checked.
    from_file = config.method.backbone.weights not in (None, "random")
    if chosen is None or changed or from_file != chosen.needs_weights or not run.finished:
        return None
    tables = ("half_dataset",) if config.stream.first else ("main_from_scratch_mean", "finegrained_mean")
    title = ITEMS["titles"].get(run.method, method_info(run.method).title)
    row = paper_row(tables, config.stream, {"method": title})
    return Published(row["a_last"], row["a_inc"]) if row else None


def paper_row(tables: Sequence[str], stream: StreamConfig, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row of the paper's tables by what it states, such as its method; of several tables the first that has it.

    >>> row = paper_row(("ablation",), StreamConfig(dataset="cifar100", tasks=10), {"cov_matrix": "Diagonal"})
    >>> row and row["a_last"]
    41.1
    """
    if not facts or stream.dataset not in ITEMS["datasets"]:
        return None
    # T of the paper does not count a first task with half of the classes.
    expected = {
        "dataset": ITEMS["datasets"][stream.dataset],
        "tasks": stream.tasks - (stream.first is not None),
        **facts,
    }
    for table, row in product(tables, _resource("paper_results.json")["results"]):
        if row["table"] == table and all(row.get(key) == value for key, value in expected.items()):
            return None if stream.dataset.startswith("imagenet") and row["method"] in ITEMS["from_efc"] else dict(row)
    return None


def in_figures(start: str) -> dict[str, Any]:
    """Numbers that the paper states about a figure, found by how its name begins."""
    entries = _resource("paper_results.json")["numbers_in_text_or_figures"]
    return next(dict(entry) for entry in entries if entry["where"].startswith(start))
