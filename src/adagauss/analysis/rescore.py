"""Rescore finished runs: other drifts and classifiers on the networks that a run stored after each task.

The features of each task are extracted once with the network before and after it. One memory per drift is updated
through the tasks, and every classifier is scored on each memory, so only adapters and classifiers are fitted. An oracle
memory with the real statistics of the old classes gives the upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.analysis.tables import Spread
from adagauss.core.config import check_requirements
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.learner_state import LearnerState
from adagauss.core.linalg import by_rows
from adagauss.core.state import Scorer, State
from adagauss.core.task import CurrentTask, extract_features
from adagauss.data.dataset import Dataset
from adagauss.data.images import Label
from adagauss.data.stream import TaskStream
from adagauss.errors import ConfigError
from adagauss.experiments.metrics import mean
from adagauss.experiments.run import Run
from adagauss.experiments.runner import make_stream
from adagauss.methods import Method, method_info
from adagauss.parts.classifiers import Classifier
from adagauss.parts.drift import Drift, Moved
from adagauss.parts.memory import Memory
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

ORACLE = "oracle"


class Checkpoint(NamedTuple):
    """A finished task: the learner's state after it, and the task itself with the networks before and after."""

    task: int
    """Its number, from 0."""
    state: LearnerState
    now: CurrentTask


def checkpoints(run: Run, stream: TaskStream, runtime: Runtime) -> Iterator[Checkpoint]:
    """Load the finished tasks of a run one after another; two networks are in memory at a time."""
    method = run.config.method
    before: LearnerState | None = None
    for index in range(run.done):
        state = Learner.load(run.checkpoint(index), Runtime(run.config.runtime, run.seed)).state
        previous = before.network.frozen_copy() if before else None
        states = before.states_below("representation/") if before else {}
        classes = tuple(before.classes) if before else ()
        train = stream[index].train
        now = CurrentTask(index, train, state.network, previous, method.augmentation, runtime, states, classes)
        yield Checkpoint(index, state, now)
        before = state


class TrackedMemory(NamedTuple):
    """A memory that a drift has updated, and the states of the two parts."""

    bank: ClassGaussians
    drift: State | None = None
    memory: State | None = None


Update = Callable[[ClassGaussians, State | None], Moved]
"""Moves a bank into the features of the current task, as `Drift.update`."""


def track_memory(
    tracked: TrackedMemory | None, update: Update, memory: Memory, method: Method, now: CurrentTask
) -> TrackedMemory:
    """Update a memory by one task as `Learner.learn` does, with this drift and memory part."""
    tracked = tracked or TrackedMemory(memory.empty(now.network.extractor.size, now.runtime.device))
    bank, state = tracked.bank, tracked.drift
    if not now.first and method.representation.later is not None:
        moved = update(bank, state)
        bank, state = memory.after_drift(bank, moved.memory), moved.state
    updated = memory.update(bank, now, tracked.memory)
    return TrackedMemory(updated.bank, state, updated.state)


def update_of(drift: Drift, now: CurrentTask) -> Update:
    """The update of a drift in one task."""
    return lambda bank, state: drift.update(bank, now, state)


def real_statistics(features: Tensor, targets: Tensor, labels: Sequence[Label]) -> ClassGaussians:
    """Gaussians of labelled features, classes in the order of ``labels``."""
    bank = ClassGaussians.from_features(features, [labels[target] for target in targets.tolist()])
    return bank.select([label for label in labels if label in bank]) if len(bank) else bank


def task_mean(scores: Tensor, targets: Tensor, sizes: Sequence[int]) -> float:
    """Mean over tasks of the accuracy on their images; ``sizes`` are the numbers of classes per task."""
    hits = (scores.argmax(1).cpu() == targets).double()
    tasks = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))[targets]
    return float(torch.stack([hits[tasks == task].mean() for task in range(len(sizes))]).mean())


class RescoredCurve(NamedTuple):
    """Accuracy of one drift with one classifier after each task (mean over tasks, as a fraction)."""

    drift: str
    classifier: str
    accuracy: tuple[float, ...]

    @property
    def a_last(self) -> float:
        return self.accuracy[-1]

    @property
    def a_inc(self) -> float:
        return mean(self.accuracy)


class RescoredRun(NamedTuple):
    """All combinations, and the log-determinants that show how much the covariances shrink."""

    rows: list[RescoredCurve]
    first_task_log_det: dict[str, float]
    """Mean log-determinant of the first task's covariances after the last task, by drift."""


def rescore(
    run: Run,
    dataset: Dataset,
    drifts: Mapping[str, Drift],
    classifiers: Mapping[str, Classifier],
    reporter: Reporter | None = None,
    memory: Memory | None = None,
    oracle: bool = True,
) -> RescoredRun:
    """Score every drift with every classifier on the networks of a finished run.

    Args:
        run: the run.
        dataset: its data.
        drifts: drifts by name.
        classifiers: classifiers by name.
        reporter: shows progress.
        memory: the memory part for all of them; None takes the memory part of the run.
        oracle: whether real statistics are scored too.

    Raises:
        ConfigError: if the parts do not fit together, or the networks do not depend on a drift.
    """
    config, method = run.config, run.config.method
    memory = memory or method.memory
    _check(run, classifiers)
    for drift, classifier in product(drifts.values(), classifiers.values()):
        check_requirements(
            [method.representation, *method.representation.terms.values(), memory, drift, classifier], method.given()
        )
    reporter = reporter or Reporter()
    runtime = Runtime(config.runtime, config.seed, reporter)
    stream = make_stream(config, dataset)
    memories: dict[str, TrackedMemory] = {}
    scorers: dict[tuple[str, str], Scorer] = {}
    curves: dict[tuple[str, str], list[float]] = {}
    with reporter.progress(f"rescoring {run.path.name}", run.done) as advance:
        for index, _, now in checkpoints(run, stream, runtime):
            features_of = partial(extract_features, now.network.extractor, runtime=runtime)
            labels = stream.seen(index)
            test, train = dataset.test.of_classes(labels), dataset.train.of_classes(labels)
            features = features_of(test.images)
            for name, drift in drifts.items():
                memories[name] = track_memory(memories.get(name), update_of(drift, now), memory, method, now)
            if oracle:
                real = real_statistics(features_of(train.images), train.targets, labels)
                memories[ORACLE] = TrackedMemory(real)
            sizes = [len(classes) for classes in stream.task_classes[: index + 1]]
            for key in product(memories, classifiers):
                # Every classifier is kept through all tasks: some carry sums over earlier tasks.
                scorers[key] = classifiers[key[1]].fit(memories[key[0]].bank, now, scorers.get(key))
                with torch.inference_mode():
                    accuracy = task_mean(by_rows(scorers[key], features), test.targets, sizes)
                curves.setdefault(key, []).append(accuracy)
            advance("")
    log_dets = {
        name: _mean_log_det(tracked.bank.select(stream.task_classes[0]))
        for name, tracked in memories.items()
        if len(tracked.bank) and tracked.bank.covariance != "none"
    }
    return RescoredRun([RescoredCurve(*key, tuple(curve)) for key, curve in curves.items()], log_dets)


def rescored_rows(results: Sequence[RescoredRun]) -> list[dict[str, str]]:
    """Rows of a table: drifts down, classifiers across, A_last / A_inc in percent; mean ± deviation over seeds."""
    rows = []
    for drift in dict.fromkeys(row.drift for row in results[0].rows):
        by_kind: dict[str, list[RescoredCurve]] = {}
        for row in (row for result in results for row in result.rows if row.drift == drift):
            by_kind.setdefault(row.classifier, []).append(row)
        cells = {
            f"classifier {kind}": f"{Spread.of([one.a_last for one in curves])} / "
            f"{Spread.of([one.a_inc for one in curves]).mean:.1f}"
            for kind, curves in by_kind.items()
        }
        log_dets = [result.first_task_log_det[drift] for result in results if drift in result.first_task_log_det]
        log_det = f"{mean(log_dets):.1f}" if log_dets else ""
        rows.append({"drift": drift, **cells, "log-determinant, task 1": log_det})
    return rows


def _check(run: Run, classifiers: Mapping[str, Classifier]) -> None:
    if method_info(run.method).joint:
        raise ConfigError(
            f"{run.path}: {run.method} trains on all images in every task, so it has no drift to compensate"
        )
    if changing := [part.kind for part in classifiers.values() if part.changes_network]:
        raise ConfigError(
            f"classifier {changing[0]!r} trains the outputs of the network further and cannot be rescored: "
            "choose another one, e.g. classifier.kind=bayes"
        )


def _mean_log_det(memory: ClassGaussians) -> float:
    return float(torch.linalg.slogdet(memory.covariances).logabsdet.mean())
