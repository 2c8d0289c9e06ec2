"""Figures beyond the paper, from runs that its tables need anyway."""

from __future__ import annotations

from adagauss.reproduce.items.places import CIFAR
from adagauss.reproduce.items.rows import ADAGAUSS, COLLAPSING
from adagauss.reproduce.items.tables import LINEAR, TABLE1
from adagauss.reproduce.plan import Item, Row

BEYOND = "beyond the paper"


def _item(study: str, title: str, *rows: Row) -> Item:
    return Item(study, title, BEYOND, rows, CIFAR, study=study)


BEYOND_PAPER = (
    _item("recency", "Share of predictions by task", *TABLE1.rows, COLLAPSING),
    _item("awareness", "Task-aware and task-agnostic accuracy", *TABLE1.rows),
    _item("balance", "Forgetting against plasticity", *TABLE1.rows),
    _item("confusion", "Confusion by task", ADAGAUSS),
    _item("oracle", "Accuracy with real statistics", ADAGAUSS, COLLAPSING),
    _item("conditions", "Condition numbers of covariances", ADAGAUSS, COLLAPSING),
    _item("pareto", "Accuracy against time and memory", *TABLE1.rows, LINEAR),
)
