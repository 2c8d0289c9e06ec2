"""Run folders as the runner writes them, with predictions that are made up: nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from adagauss.core.config import plain
from adagauss.data.images import Label
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.metrics import Evaluation
from adagauss.experiments.run import ENVIRONMENT, METRICS_FILE, Run, RunFolder, TaskFacts


def config_of(
    method: str = "finetune",
    sizes: Sequence[int] = (2, 2),
    seed: int = 0,
    dataset: str = "digits",
    settings: dict[str, Any] | None = None,
) -> RunConfig:
    stream = StreamConfig(dataset=dataset, sizes=tuple(sizes), classes=sum(sizes))
    return make_config(method, stream, settings=settings, seed=seed)


def run_of(
    path: Path,
    config: RunConfig,
    evaluations: Sequence[Evaluation],
    facts: Sequence[TaskFacts],
    names: Sequence[Label],
) -> Run:
    """A run whose content is known, so that its files are not read."""
    run = Run(path, len(evaluations))
    vars(run).update(config=config, labels=tuple(names), environment={})
    vars(run).update(evaluations=tuple(evaluations), facts=tuple(facts))
    return run


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
    """A run of ``done`` tasks; a share ``right`` of the answers is right, the others name the next class."""
    folder = RunFolder(path)
    folder.write_json(ENVIRONMENT, environment if environment is not None else {"source": "abc", "threads": "1"})
    folder.write_json("origins.json", dict(config.origins))
    folder.write_config(plain(config))
    sizes = config.stream.sizes or ()
    kept = []
    for task in range(len(sizes) if done is None else done):
        seen = sizes[: task + 1]
        true = torch.arange(sum(seen)).repeat_interleave(images)
        wrong = torch.arange(len(true)) % images >= round(right * images)
        predicted = torch.where(wrong, (true + 1) % sum(seen), true)
        evaluation = Evaluation(true, predicted, true, seen)
        facts = TaskFacts(
            seconds={"representation": 2.0, "evaluation": 0.5},
            images_per_second=100.0,
            bytes_per_class=1234,
            other_state_bytes=5_000_000,
            history=(),
        )
        folder.write_evaluation(task, evaluation, facts)
        kept.append((evaluation, facts))
    if len(kept) == len(sizes):
        _conclude(folder, config, kept, names or [f"name {number}" for number in range(sum(sizes))])
    return path


def _conclude(
    folder: RunFolder, config: RunConfig, kept: Sequence[tuple[Evaluation, TaskFacts]], names: Sequence[str]
) -> None:
    evaluations, facts = zip(*kept, strict=True)
    # The report reads the predictions; a matrix of a thousand classes would be a file of megabytes.
    stored = run_of(folder.path, config, evaluations, facts, names).stored_metrics()
    folder.write_json(METRICS_FILE, {**stored, "details": {}})
