"""Compare many drifts and classifiers for the cost of one run: replay its finished tasks with the stored networks.

A run folder holds the network after every task. Replaying extracts the features of each task once with the network
before and after it, and updates one memory per drift through the tasks; every classifier is scored on each memory. Only
the adapters are trained. An oracle memory, with the real statistics of the old classes, gives the upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import NamedTuple

import torch

from adagauss.analysis.visits import Followed, followed, task_mean, visits
from adagauss.core.config import check_requirements
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import by_rows
from adagauss.core.state import Scorer, State
from adagauss.core.task import CurrentTask, extract_features
from adagauss.data.dataset import Dataset
from adagauss.errors import CheckpointError, ConfigError
from adagauss.experiments.compare import Spread, markdown
from adagauss.experiments.config import RunConfig
from adagauss.experiments.metrics import mean
from adagauss.experiments.run import RunFolder, Stored, real_statistics, stored_config
from adagauss.experiments.runner import make_stream
from adagauss.methods import method_info
from adagauss.parts.classifiers import Classifier
from adagauss.parts.drift import Drift, Moved
from adagauss.parts.memory import Memory
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

ORACLE = "oracle"


class Curve(Stored):
    """Accuracy after each task (mean over tasks, as a fraction)."""

    accuracy: tuple[float, ...]

    @property
    def a_last(self) -> float:
        return self.accuracy[-1]

    @property
    def a_inc(self) -> float:
        return mean(self.accuracy)


class Replayed(Curve):
    """Accuracy of one drift with one classifier."""

    drift: str
    classifier: str


class Replay(Stored):
    """All combinations, and the log-determinants that show how much the covariances shrink."""

    rows: tuple[Replayed, ...]
    first_task_log_det: dict[str, float]
    """Mean log-determinant of the first task's covariances after the last task, by drift."""


def replay(
    folder: RunFolder,
    dataset: Dataset,
    drifts: Mapping[str, Drift],
    classifiers: Mapping[str, Classifier],
    reporter: Reporter | None = None,
    memory: Memory | None = None,
) -> Replay:
    """Score every drift with every classifier on the networks of a finished run.

    ``memory`` is the memory part for all of them; None takes the memory part of the run.
    """
    config = stored_config(folder)
    method, memory = config.method, memory or config.method.memory
    _check(folder, config, classifiers)
    for drift, classifier in product(drifts.values(), classifiers.values()):
        check_requirements(
            [method.representation, *method.representation.terms.values(), memory, drift, classifier], method.given()
        )
    reporter = reporter or Reporter()
    runtime = Runtime(config.runtime, config.seed, reporter)
    stream = make_stream(config, dataset)
    memories: dict[str, Followed] = {}
    scorers: dict[tuple[str, str], Scorer] = {}
    curves: dict[tuple[str, str], list[float]] = {}
    with reporter.progress(f"replay of {folder.path.name}", folder.finished_tasks()) as advance:
        for visit in visits(folder, config, stream, runtime):
            index, now = visit.index, visit.now
            labels = stream.seen(index)
            test = dataset.test.of_classes(labels)
            features = extract_features(now.network.extractor, test.images, runtime)
            for name, drift in drifts.items():
                update = partial(_update, drift, now)
                memories[name] = followed(memories.get(name), update, memory, method, now)
            train = dataset.train.of_classes(labels)
            memories[ORACLE] = Followed(
                real_statistics(extract_features(now.network.extractor, train.images, runtime), train.targets, labels)
            )
            for name, kept in memories.items():
                for kind, classifier in classifiers.items():
                    # Every classifier is kept through all tasks: some carry sums over earlier tasks.
                    scorer = classifier.fit(kept.bank, now, scorers.get((name, kind)))
                    scorers[name, kind] = scorer
                    with torch.inference_mode():
                        scores = by_rows(scorer, features)
                    sizes = [len(classes) for classes in stream.task_classes[: index + 1]]
                    curves.setdefault((name, kind), []).append(task_mean(scores, test.targets, sizes))
            advance("")
    first = stream.task_classes[0]
    log_dets = {
        name: _mean_log_det(kept.bank.select(first))
        for name, kept in memories.items()
        if len(kept.bank) and kept.bank.covariance != "none"
    }
    rows = [Replayed(drift=drift, classifier=kind, accuracy=tuple(curve)) for (drift, kind), curve in curves.items()]
    return Replay(rows=tuple(rows), first_task_log_det=log_dets)


class Scores(NamedTuple):
    """A_last and A_inc of one combination over seeds."""

    a_last: Spread
    a_inc: Spread

    def __str__(self) -> str:
        return f"{self.a_last} / {self.a_inc.mean:.1f}"


def summarise(results: list[Replay]) -> dict[str, dict[str, Scores]]:
    """Scores by drift and classifier over the replays of several seeds."""
    found: dict[str, dict[str, list[Replayed]]] = {}
    for row in (row for result in results for row in result.rows):
        found.setdefault(row.drift, {}).setdefault(row.classifier, []).append(row)
    return {
        drift: {
            kind: Scores(Spread.of([row.a_last for row in rows]), Spread.of([row.a_inc for row in rows]))
            for kind, rows in by_kind.items()
        }
        for drift, by_kind in found.items()
    }


def table(results: list[Replay]) -> str:
    """A_last / A_inc in percent as Markdown, classifiers down, drifts across; mean ± deviation over seeds."""
    cells = summarise(results)
    kinds = list(next(iter(cells.values())))
    rows = [{"classifier": kind, **{drift: str(by_kind[kind]) for drift, by_kind in cells.items()}} for kind in kinds]
    log_dets = {drift: mean_log_det(results, drift) for drift in cells}
    return markdown([*rows, {"classifier": "*log-determinant, task 1*", **log_dets}])


def mean_log_det(results: list[Replay], drift: str) -> str:
    """Mean log-determinant of the first task's covariances over seeds; empty where none are kept."""
    values = [result.first_task_log_det[drift] for result in results if drift in result.first_task_log_det]
    return f"{sum(values) / len(values):.1f}" if values else ""


def _check(folder: RunFolder, config: RunConfig, classifiers: Mapping[str, Classifier]) -> None:
    if method_info(config.method_name).joint:
        raise ConfigError(
            f"{folder.path}: {config.method_name} learns from all images at every task, so there is no drift to replay"
        )
    if changing := [part.kind for part in classifiers.values() if part.changes_network]:
        raise ConfigError(
            f"classifier {changing[0]!r} trains the network's own outputs further and cannot be replayed: "
            "choose another one, e.g. classifier.kind=bayes"
        )
    if not folder.finished_tasks():
        raise CheckpointError(f"{folder.path} has no finished task to replay")


def _update(drift: Drift, now: CurrentTask, bank: ClassGaussians, state: State | None) -> Moved:
    return drift.update(bank, now, state)


def _mean_log_det(memory: ClassGaussians) -> float:
    return float(torch.linalg.slogdet(memory.covariances).logabsdet.mean())
