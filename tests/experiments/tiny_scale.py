"""A scale that takes seconds: every benchmark of the paper is four digits in two tasks, one epoch each."""

from __future__ import annotations

from adagauss.data.stream import StreamConfig
from adagauss.experiments.paper import Scale
from adagauss.experiments.protocols import Protocol

SETTINGS = {
    "backbone.name": "convnet",
    "backbone.features": 8,
    "representation.first.epochs": 1,
    "representation.later.epochs": 1,
    "drift.recipe.epochs": 1,
    "drift.samples": 200,
    "drift.views": 1,
}


def tiny_protocol(name: str) -> Protocol:
    sizes = (2, 1, 1) if "half" in name else (2, 2)
    stream = StreamConfig(dataset="digits", tasks=len(sizes), sizes=sizes, classes=4)
    return Protocol(f"{name}-tiny", stream, SETTINGS, scale="cpu")


TINY = Scale("tiny", (0,), "cpu", "shared", tiny_protocol, "four digits")
