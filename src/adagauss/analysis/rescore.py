"""Rescore finished runs: other memories, drifts and classifiers on the networks that a run stored after each task.

The networks before and after each task are loaded once. Every variant of memory and drift is updated through the tasks,
and every classifier is scored on each, so only adapters and classifiers are fitted. The real statistics of the old
classes (oracle) are the upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import torch

from adagauss.analysis.tables import Spread
from adagauss.backbones import Extractor, Network
from adagauss.core.config import check_requirements
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.learner_state import LearnerState
from adagauss.core.linalg import by_rows
from adagauss.core.state import Scorer
from adagauss.core.task import CurrentTask, extract_features
from adagauss.data import augment
from adagauss.data.dataset import Dataset
from adagauss.data.stream import TaskStream
from adagauss.errors import ConfigError
from adagauss.experiments.metrics import Evaluation, mean
from adagauss.experiments.run import Run
from adagauss.experiments.runner import make_stream
from adagauss.methods import Method, method_info
from adagauss.parts.classifiers import Classifier
from adagauss.parts.drift import Adapter, Drift
from adagauss.parts.memory import Memory
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

ORACLE = "oracle"
ALL = "all"
"""All tasks together, in statistics by task."""


def checkpoints(run: Run, stream: TaskStream, runtime: Runtime) -> Iterator[tuple[LearnerState, CurrentTask]]:
    """Load the learner's state after each finished task, and the task with the networks before and after it."""
    method = run.config.method
    before: LearnerState | None = None
    for index in range(run.done):
        state = Learner.load(run.checkpoint(index), Runtime(run.config.runtime, run.seed)).state
        previous = before.network.frozen_copy() if before else None
        states = before.term_states if before else {}
        classes = tuple(before.classes) if before else ()
        drift = before.states.get("drift") if before else None
        train = stream[index].train
        now = CurrentTask(index, train, state.network, previous, method.augmentation, runtime, states, classes, drift)
        yield state, now
        before = state


def real_statistics(
    extractor: Extractor, stream: TaskStream, index: int, memory: Memory, runtime: Runtime
) -> tuple[ClassGaussians, ClassGaussians]:
    """Gaussians of the classes up to a task, and of each task and `ALL` of them, from all training images.

    Mirror images count for classes if the memory counts them. Features of one task at a time are in memory.
    """
    real, tasks = (ClassGaussians(extractor.size, device=runtime.device) for _ in range(2))
    for number in range(index + 1):
        train = stream[number].train
        features = extract_features(extractor, train.images, runtime)
        real.add(features, train.labels)
        tasks.add(features, [number] * len(features))
        tasks.add(features, [ALL] * len(features))
        if getattr(memory, "flips", False):
            mirrored = extract_features(extractor, train.images, runtime, augment.mirrored)
            real.add(mirrored, train.labels)
    return real.select(stream.seen(index)), tasks


class TestFeatures:
    """Features of the test images of all classes up to a task, as used for prediction."""

    def __init__(self, network: Network, stream: TaskStream, index: int, runtime: Runtime) -> None:
        test = stream.dataset.test.of_classes(stream.seen(index))
        size = network.extractor.size
        self.features = extract_features(network.extractor, test.images, runtime, prediction=True)[:, :size]
        self._targets = test.targets
        self._sizes = tuple(map(len, stream.task_classes[: index + 1]))

    def accuracy(self, scorer: Scorer) -> float:
        """Mean over tasks of the accuracy on their images."""
        with torch.inference_mode():
            predicted = by_rows(scorer, self.features).argmax(1).cpu()
        return mean(Evaluation(self._targets, predicted, predicted, self._sizes).accuracy_per_task())


class Variant(NamedTuple):
    """The two parts that the statistics of old classes depend on."""

    drift: Drift
    memory: Memory


def _mover(drift: Drift, now: CurrentTask) -> Callable[[ClassGaussians], ClassGaussians]:
    """A drift in one task, for any number of memories: an adapter is trained once."""
    if not isinstance(drift, Adapter):
        return lambda bank: drift.move(bank, now)
    old, new = now.pairs(drift.views)
    mapping = drift.train_map(now, old, new)
    return lambda bank: drift.moved(bank, now, mapping)


Curve = tuple[float, ...]
"""Accuracy after each task: mean over tasks, as a fraction."""


def rescore(
    run: Run,
    dataset: Dataset,
    variants: Mapping[str, Variant],
    classifiers: Mapping[str, Classifier],
    reporter: Reporter | None = None,
    oracle: bool = True,
) -> dict[tuple[str, str], Curve]:
    """Score every variant with every classifier on the networks of a finished run; returns a curve for each pair.

    Args:
        run: the run.
        dataset: its data.
        variants: drifts and memories by name.
        classifiers: classifiers by name.
        reporter: shows progress.
        oracle: whether real statistics are scored too, as the variant `ORACLE`.

    Raises:
        ConfigError: if the parts do not fit together, or the networks do not depend on a drift.
    """
    config, method = run.config, run.config.method
    _check(run, method, variants, classifiers)
    reporter = reporter or Reporter()
    runtime = Runtime(config.runtime, config.seed, reporter)
    stream = make_stream(config, dataset)
    tracked: dict[str, ClassGaussians] = {}
    scorers: dict[tuple[str, str], Scorer] = {}
    curves: dict[tuple[str, str], Curve] = {}
    with reporter.progress(f"rescoring {run.path.name}", run.done) as advance:
        for _, now in checkpoints(run, stream, runtime):
            moves = not now.first and method.representation.later is not None
            drifts = dict.fromkeys(variant.drift for variant in variants.values()) if moves else ()
            movers = {drift: _mover(drift, now) for drift in drifts}
            for name, (drift, memory) in variants.items():  # as `Learner.learn`
                bank = tracked.get(name, memory.empty(now.network.extractor.size, runtime.device))
                if drift in movers:
                    bank = memory.after_drift(bank, movers[drift](bank))
                tracked[name] = memory.add(bank, now)
            if oracle:
                tracked[ORACLE], _ = real_statistics(now.network.extractor, stream, now.index, method.memory, runtime)
            test = TestFeatures(now.network, stream, now.index, runtime)
            for key in product(tracked, classifiers):
                # Every classifier is kept through all tasks: some carry sums over earlier tasks.
                scorers[key] = classifiers[key[1]].fit(tracked[key[0]], now, scorers.get(key))
                curves[key] = (*curves.get(key, ()), test.accuracy(scorers[key]))
            advance("")
    return curves


def _check(run: Run, method: Method, variants: Mapping[str, Variant], classifiers: Mapping[str, Classifier]) -> None:
    if method_info(run.method).joint:
        raise ConfigError(
            f"{run.path}: {run.method} trains on all images in every task, so it has no drift to compensate"
        )
    if changing := [part.kind for part in classifiers.values() if part.changes_network]:
        raise ConfigError(
            f"classifier {changing[0]!r} trains the outputs of the network further and cannot be rescored: "
            "choose another one, e.g. classifier.kind=bayes"
        )
    for variant, classifier in product(variants.values(), classifiers.values()):
        trained = method.representation, *method.representation.terms.values()
        check_requirements([*trained, variant.memory, variant.drift, classifier], method.given())


def rescored_rows(results: Sequence[Mapping[tuple[str, str], Curve]]) -> list[dict[str, str]]:
    """Rows of a table: variants down, classifiers across, A_last / A_inc in percent; mean ± deviation over seeds."""
    rows: dict[str, dict[str, str]] = {}
    for variant, classifier in results[0]:
        curves = [result[variant, classifier] for result in results]
        last, inc = Spread.of([curve[-1] for curve in curves]), Spread.of([mean(curve) for curve in curves])
        rows.setdefault(variant, {"drift": variant})[f"classifier {classifier}"] = f"{last} / {inc.mean:.1f}"
    return list(rows.values())
