"""The shrink sweep on the networks of one run: covariances are shrunk by several amounts when they are stored."""

from __future__ import annotations

import torch

from adagauss.analysis.measured.kept import Tables
from adagauss.analysis.measured.real import prediction_features
from adagauss.analysis.visits import Followed, Update, followed, task_mean, visits
from adagauss.core.linalg import by_rows
from adagauss.core.task import CurrentTask
from adagauss.data.stream import TaskStream
from adagauss.errors import UnsupportedError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import RunFolder
from adagauss.parts.classifiers import MemoryClassifier
from adagauss.parts.drift import Adapter, Drift, Moved
from adagauss.parts.memory import GaussianMemory
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime

AMOUNTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""γ of Σ + γ·mean(diag Σ)·I."""
MOST_SAMPLES = 2000
"""Draws that a covariance is followed with: enough for a curve, and a fifth of the published number."""


def measure_shrink(folder: RunFolder, config: RunConfig, stream: TaskStream, reporter: Reporter) -> Tables:
    """``shrink.amounts`` (G,) and ``shrink.accuracy`` (G, T), the accuracy over all seen classes after each task.

    The memory is followed through all tasks once per amount, and shrunk again after every adaptation, as in the
    published code. An adapter is trained once per task: it does not depend on the memory.
    """
    memory, classifier = config.method.memory, config.method.classifier
    if not isinstance(memory, GaussianMemory):
        raise UnsupportedError("only memories of Gaussians can be shrunk")
    if not isinstance(classifier, MemoryClassifier) or not classifier.cheap:
        raise UnsupportedError(f"the classifier {classifier.kind} does not follow from the memory alone")
    runtime = Runtime(config.runtime, config.seed)
    count = folder.finished_tasks()
    memories = [memory.with_changes(shrinkage=amount) for amount in AMOUNTS]
    banks: list[Followed | None] = [None] * len(AMOUNTS)
    accuracy = torch.full((len(AMOUNTS), count), torch.nan, dtype=torch.float64)
    with reporter.progress(f"shrink sweep of {folder.path.name}", count) as advance:
        for visit in visits(folder, config, stream, runtime):
            index, now = visit.index, visit.now
            test = stream.dataset.test.of_classes(stream.seen(index))
            features = prediction_features(now.network.extractor, test.images, runtime)
            sizes = [len(classes) for classes in stream.task_classes[: index + 1]]
            update = _update(config.method.drift, now)
            for place, part in enumerate(memories):
                banks[place] = kept = followed(banks[place], update, part, config.method, now)
                scorer = classifier.of_memory(kept.bank, now)
                with torch.inference_mode():
                    accuracy[place, index] = task_mean(by_rows(scorer, features), test.targets, sizes)
            advance()
    return {"shrink.amounts": torch.tensor(AMOUNTS, dtype=torch.float64), "shrink.accuracy": accuracy}


def _update(drift: Drift, now: CurrentTask) -> Update:
    """The drift of a task for any number of memories."""
    if not isinstance(drift, Adapter) or now.first:
        return lambda bank, state: drift.update(bank, now, state)
    old, new, _ = now.pairs(drift.views)
    mapping = drift.train_map(now, old, new)
    shorter = drift.with_changes(samples=min(drift.samples, MOST_SAMPLES))
    return lambda bank, state: Moved(shorter.moved(bank, now, mapping))
