"""Run folders with synthetic predictions, in the format of the runner: nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from adagauss.core.config import plain
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.environment import ENVIRONMENT
from adagauss.experiments.metrics import Evaluation
from adagauss.experiments.run import RunFolder, TaskFacts


def config_of(
    method: str = "finetune",
    sizes: Sequence[int] = (2, 2),
    seed: int = 0,
    dataset: str = "digits",
    settings: dict[str, Any] | None = None,
) -> RunConfig:
    stream = StreamConfig(dataset=dataset, sizes=tuple(sizes), classes=sum(sizes))
    return make_config(method, stream, settings=settings, seed=seed)


def made_run(
    path: Path,
    config: RunConfig,
    *,
    names: Sequence[str] | None = None,
    done: int | None = None,
    right: float = 0.7,
    images: int = 10,
    environment: dict[str, Any] | None = None,
) -> Path:
    """A run of ``done`` tasks; a share ``right`` of the predictions is correct, the others are the next class."""
    folder = RunFolder(path)
    folder.write_json(ENVIRONMENT, environment if environment is not None else {"source": "abc", "threads": "1"})
    folder.write_json("origins.json", dict(config.origins))
    folder.write_config(plain(config))
    sizes = config.stream.sizes or ()
    for task in range(len(sizes) if done is None else done):
        seen = sizes[: task + 1]
        true = torch.arange(sum(seen)).repeat_interleave(images)
        wrong = torch.arange(len(true)) % images >= round(right * images)
        predicted = torch.where(wrong, (true + 1) % sum(seen), true)
        facts = TaskFacts(
            seconds={"representation": 2.0, "evaluation": 0.5},
            images_per_second=100.0,
            bytes_per_class=1234,
            other_state_bytes=5_000_000,
            history=(),
        )
        folder.write_evaluation(task, Evaluation(true, predicted, true, seen), facts)
    if done is None:
        labels = list(names or (f"name {number}" for number in range(sum(sizes))))
        classes = [[labels.pop(0) for _ in range(size)] for size in sizes]
        folder.write_json("metrics.json", {"protocol": {"classes": classes}})
    return path
