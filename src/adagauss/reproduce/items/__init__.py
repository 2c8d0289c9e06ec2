"""Every table and figure of the paper, by name."""

from __future__ import annotations

from adagauss.errors import unknown_name
from adagauss.reproduce.items.adaptation import ADAPTATION
from adagauss.reproduce.items.beyond import BEYOND_PAPER
from adagauss.reproduce.items.collapse import COLLAPSE
from adagauss.reproduce.items.sweeps import SWEEPS
from adagauss.reproduce.items.tables import TABLES
from adagauss.reproduce.plan import Item

ITEMS = {item.name: item for item in (*TABLES, *COLLAPSE, *ADAPTATION, *SWEEPS, *BEYOND_PAPER)}
ALL = "all"


def find_items(names: list[str]) -> list[Item]:
    """Items by name or figure number; ``all`` for every one.

    >>> [item.name for item in find_items(["fig3", "ranks", "ablation"])]
    ['ranks', 'ablation']
    """
    known = {**ITEMS, **{item.alias: item for item in ITEMS.values() if item.alias}}
    found: dict[str, Item] = {}
    for name in names:
        if name != ALL and name not in known:
            raise unknown_name("table or figure", name, [*known, ALL])
        for item in ITEMS.values() if name == ALL else [known[name]]:
            found[item.name] = item
    return list(found.values())
