"""The numbers printed in the paper, for the rows of our tables with the same protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, NamedTuple

DATASETS = {
    "cifar100": "CIFAR-100",
    "tiny": "TinyImageNet",
    "imagenet-subset-seed1993": "ImageNet-Subset",
    "cub": "CUB200",
    "aircraft": "FGVCAircraft",
}
CLASSES = {"TinyImageNet": 200, "CUB200": 200}
"""The others have 100."""
FROM_EFC = {"EWC", "LwF", "PASS", "FeTrIL", "SSRE", "EFC"}
"""Rows copied from EFC's tables, whose ImageNet-Subset has other classes than that of AdaGauss."""
TITLES = {"adagauss-linear": "AdaGauss (lin. head)"}
EQUAL_TASKS = ("main_from_scratch_mean", "finegrained_mean")
HALF_FIRST = ("half_dataset",)


class Published(NamedTuple):
    """A pair of numbers of the paper, in percent."""

    a_last: float
    a_inc: float


def published(title: str, method: str, dataset: str, sizes: Sequence[int], scale: str) -> Published | None:
    """The paper's numbers for a method, if it has them for this protocol (same tasks, all classes, same scale)."""
    if scale != "paper" or dataset not in DATASETS or sum(sizes) != CLASSES.get(DATASETS[dataset], 100):
        return None
    tables: tuple[str, ...]
    if len(set(sizes)) == 1:
        tables, tasks = EQUAL_TASKS, len(sizes)
    elif sizes[0] == sum(sizes[1:]) and len(set(sizes[1:])) == 1:
        tables, tasks = HALF_FIRST, len(sizes) - 1
    else:
        return None
    if dataset.startswith("imagenet") and title in FROM_EFC:
        return None
    for row in _paper()["results"]:
        same_run = row["table"] in tables and row["dataset"] == DATASETS[dataset] and row["tasks"] == tasks
        if same_run and row["method"] == TITLES.get(method, title):
            return Published(row["a_last"], row["a_inc"])
    return None


def paper_row(tables: Sequence[str], dataset: str, tasks: int, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row of the paper's tables by what it states, such as its method; of several tables the first that has it.

    >>> row = paper_row(("ablation",), "cifar100", 10, {"cov_matrix": "Diagonal"})
    >>> row and row["a_last"]
    41.1
    """
    for table, row in product(tables, _paper()["results"]):
        facts_of_run = {"table": table, "dataset": DATASETS.get(dataset), "tasks": tasks}
        if facts and all(row.get(key) == value for key, value in {**facts_of_run, **facts}.items()):
            return None if dataset.startswith("imagenet") and row["method"] in FROM_EFC else dict(row)
    return None


@cache
def _paper() -> dict[str, Any]:
    text = resources.files("adagauss.experiments").joinpath("paper_results.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def in_figures(start: str) -> dict[str, Any]:
    """Numbers that the paper states about a figure, found by how its name begins."""
    return next(dict(entry) for entry in _paper()["numbers_in_text_or_figures"] if entry["where"].startswith(start))


def published_minutes(title: str, method: str, dataset: str, tasks: int) -> float | None:
    """Minutes that the paper says a method trains for, on its hardware."""
    for row in _paper()["results"]:
        same_run = row["table"] == "time_complexity" and row["tasks"] == tasks
        if same_run and row["dataset"] == DATASETS.get(dataset) and row["method"] == TITLES.get(method, title):
            return float(row["training_min"])
    return None
