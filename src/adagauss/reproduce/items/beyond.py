"""Figures beyond the paper, from runs that its tables need anyway."""

from __future__ import annotations

from collections.abc import Sequence

from adagauss.analysis.measured.quantities import OWN, REAL_BOTH
from adagauss.reproduce.claims import Claim
from adagauss.reproduce.curves import Plotted, Summary, last, more
from adagauss.reproduce.items.places import CIFAR
from adagauss.reproduce.items.rows import ADAGAUSS, COLLAPSING
from adagauss.reproduce.items.tables import LINEAR, TABLE1
from adagauss.reproduce.plan import Item, Row

BEYOND = "beyond the paper"
LWF, FECAM = "LwF", "FeCAM"
ON_NEWEST = "share of errors that fall on the newest task"


def _item(study: str, title: str, rows: Sequence[Row], *claims: Claim) -> Item:
    return Item(study, title, BEYOND, tuple(rows), CIFAR, claims, study=study)


def _compared(text: str, larger: Row | str, smaller: Row | str, summary: Summary = last, **columns: str) -> Claim:
    """One row has more of what is drawn than another, usually at the end."""
    value = columns.pop("value", "value")
    labels = [row if isinstance(row, str) else row.label for row in (larger, smaller)]
    return more(text, *(Plotted(label, {"group": label, **columns}, summary, value) for label in labels))


def _memory(name: str, memory: str) -> Plotted:
    return Plotted(name, {"group": ADAGAUSS.label, "memory": memory}, last)


BEYOND_PAPER = (
    _item(
        "recency",
        "Share of predictions by task",
        (*TABLE1.rows, COLLAPSING),
        _compared(
            "LwF takes more of the old images that it gets wrong for the newest task than AdaGauss does.",
            LWF,
            ADAGAUSS,
            quantity=ON_NEWEST,
        ),
        _compared(
            "Without anti-collapse, more of the old images that are got wrong are taken for the newest task.",
            COLLAPSING,
            ADAGAUSS,
            quantity=ON_NEWEST,
        ),
    ),
    _item(
        "awareness",
        "Task-aware and task-agnostic accuracy",
        TABLE1.rows,
        _compared(
            "Also if the task of an image is told, AdaGauss is more accurate than LwF.",
            ADAGAUSS,
            LWF,
            quantity="task-aware accuracy",
        ),
    ),
    _item(
        "balance",
        "Forgetting against plasticity",
        TABLE1.rows,
        _compared("LwF forgets more than AdaGauss.", LWF, ADAGAUSS, value="forgetting, %"),
        _compared(
            "AdaGauss learns new tasks better than FeCAM, whose network stays as the first task left it.",
            ADAGAUSS,
            FECAM,
            value="plasticity, %",
        ),
    ),
    _item("confusion", "Confusion by task", (ADAGAUSS,)),
    _item(
        "oracle",
        "Accuracy with real statistics",
        (ADAGAUSS, COLLAPSING),
        more(
            "Real means and covariances of old classes would make AdaGauss more accurate.",
            _memory("accuracy with real statistics", REAL_BOTH),
            _memory("as run", OWN),
        ),
    ),
    _item(
        "conditions",
        "Condition numbers of covariances",
        (ADAGAUSS, COLLAPSING),
        _compared(
            "Without anti-collapse covariances are worse conditioned.",
            COLLAPSING,
            ADAGAUSS,
            quantity="condition number, geometric mean, all classes",
        ),
    ),
    _item(
        "pareto",
        "Accuracy against time and memory",
        (*TABLE1.rows, LINEAR),
        _compared(
            "FeCAM, whose features have no bottleneck, stores more than AdaGauss.",
            FECAM,
            ADAGAUSS,
            value="stored beside the network, bytes",
        ),
    ),
)
