"""Many drifts and classifiers for the cost of one run: replay its finished tasks with the networks as they were.

A run folder holds the network after every task. Replaying extracts the features of each task once under the network
before and after it, and carries one memory for each drift through the tasks; every classifier is scored on each.
Nothing is trained but the adapters. An oracle memory, with the real statistics of old classes, is the ceiling.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adagauss.backbones import Network
from adagauss.benchmark.compare import Spread
from adagauss.benchmark.folder import RunFolder, real_statistics
from adagauss.benchmark.runner import RunConfig, make_stream
from adagauss.classifiers import Classifier
from adagauss.data.dataset import Dataset
from adagauss.data.stream import TaskStream
from adagauss.drift import Drift
from adagauss.gaussians import ClassGaussians
from adagauss.learner import Learner
from adagauss.progress import Reporter
from adagauss.runtime import Runtime
from adagauss.task import CurrentTask, extract_features

ORACLE = "oracle"


class Replayed(NamedTuple):
    """Accuracy of one drift with one classifier, after each task (task means, as fractions)."""

    drift: str
    classifier: str
    accuracy: list[float]

    @property
    def a_last(self) -> float:
        return self.accuracy[-1]

    @property
    def a_inc(self) -> float:
        return sum(self.accuracy) / len(self.accuracy)


class Replay(NamedTuple):
    """All combinations, and the log-determinants that tell how covariances shrink."""

    rows: list[Replayed]
    first_task_log_det: dict[str, float]
    """Mean log-determinant of the first task's covariances after the last task, by drift."""

    def as_data(self) -> dict[str, Any]:
        """Everything, for a JSON file."""
        return {"rows": [row._asdict() for row in self.rows], "first_task_log_det": self.first_task_log_det}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Replay:
        """What `as_data` gave."""
        return cls([Replayed(**row) for row in data["rows"]], data["first_task_log_det"])


def replay(
    folder: RunFolder,
    dataset: Dataset,
    drifts: Mapping[str, Drift],
    classifiers: Mapping[str, Classifier],
    reporter: Reporter | None = None,
) -> Replay:
    """Score every drift with every classifier on the networks of a finished run."""
    config = RunConfig.of(folder.config)
    runtime = Runtime(config.runtime, config.seed, reporter)
    stream = make_stream(config, dataset)
    part = config.method.memory
    memories: dict[str, ClassGaussians] = {}
    curves: dict[tuple[str, str], list[float]] = {}
    previous: Network | None = None
    for index in range(folder.finished_tasks()):
        task = stream[index]
        network = Learner.load(folder.checkpoint(index), Runtime(config.runtime, config.seed)).network
        now = CurrentTask(index, task.train, network, previous, config.method.augmentation, runtime)
        labels = stream.seen(index)
        test = dataset.test.of_classes(labels)
        features = extract_features(network.extractor, test.images, runtime)
        for name, drift in drifts.items():
            memory = memories.get(name) or part.empty(network.extractor.size, runtime.device)
            if index:
                memory = part.after_drift(memory, drift.update(memory, now))
            part.add(memory, now)
            memories[name] = memory
        train = dataset.train.of_classes(labels)
        memories[ORACLE] = real_statistics(
            extract_features(network.extractor, train.images, runtime), train.targets, labels
        )
        for name, memory in memories.items():
            for kind, classifier in classifiers.items():
                accuracy = _task_mean(classifier, memory, now, features, test.targets, stream, index)
                curves.setdefault((name, kind), []).append(accuracy)
        previous = network.frozen_copy()
    first = stream.task_classes[0]
    log_dets = {name: _mean_log_det(memory.select(first)) for name, memory in memories.items()}
    return Replay([Replayed(drift, kind, curve) for (drift, kind), curve in curves.items()], log_dets)


def table(results: list[Replay]) -> str:
    """A_last / A_inc in percent as Markdown, classifiers down, drifts across; mean ± deviation over seeds."""
    cells: dict[str, dict[str, list[Replayed]]] = {}
    for result in results:
        for row in result.rows:
            cells.setdefault(row.drift, {}).setdefault(row.classifier, []).append(row)
    kinds = list(next(iter(cells.values())))
    lines = ["| classifier | " + " | ".join(cells) + " |", "|---|" + "---|" * len(cells)]
    for kind in kinds:
        values = [
            f"{Spread.of([row.a_last for row in rows])} / {Spread.of([row.a_inc for row in rows]).mean:.1f}"
            for rows in (by_kind[kind] for by_kind in cells.values())
        ]
        lines.append(f"| {kind} | " + " | ".join(values) + " |")
    log_dets = [sum(result.first_task_log_det[drift] for result in results) / len(results) for drift in cells]
    lines.append("| *log-determinant, task 1* | " + " | ".join(f"{value:.1f}" for value in log_dets) + " |")
    return "\n".join(lines) + "\n"


def _task_mean(
    classifier: Classifier,
    memory: ClassGaussians,
    now: CurrentTask,
    features: Tensor,
    targets: Tensor,
    stream: TaskStream,
    index: int,
) -> float:
    fitted = copy.deepcopy(classifier)
    fitted.fit(memory, now)
    hits = (fitted.scores(features).argmax(1).cpu() == targets).double()
    sizes = torch.tensor([len(classes) for classes in stream.task_classes[: index + 1]])
    tasks = torch.repeat_interleave(torch.arange(index + 1), sizes)[targets]
    return float(torch.stack([hits[tasks == task].mean() for task in range(index + 1)]).mean())


def _mean_log_det(memory: ClassGaussians) -> float:
    return float(torch.linalg.slogdet(memory.covariances).logabsdet.mean())
