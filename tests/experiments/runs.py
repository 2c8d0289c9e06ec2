"""Configurations of runs that take a second, and what is compared between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.run import Run

STREAM = StreamConfig(dataset="digits", sizes=(2, 2), classes=4)
SMALL = {"backbone.name": "convnet", "backbone.features": 16}
EPOCHS = {"representation.first.epochs": 2, "representation.later.epochs": 2}
ADAPTER = {"drift.recipe.epochs": 2, "drift.samples": 200, "drift.views": 1}


def quick_config(method: str = "adagauss", **changes: Any) -> RunConfig:
    """Five digits in three tasks."""
    stream = StreamConfig(dataset="digits", sizes=(2, 2, 1), classes=5)
    settings = {**SMALL, **EPOCHS, **(ADAPTER if method == "adagauss" else {})}
    return make_config(method, stream, settings={**settings, **changes})


def comparable(result: Run) -> dict[str, Any]:
    """The stored metrics without measured times."""
    stored = result.stored_metrics()
    return {**stored, "cost": result.cost.model_dump(exclude={"seconds", "cpu_seconds", "images_per_second"})}


def metrics_of(path: Path) -> dict[str, Any]:
    return comparable(Run.open(path))
