"""Algorithm 1: how one task is learned, from what was known before it and its images alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from time import perf_counter

from adagauss.classifiers.base import Trial
from adagauss.data.images import LabelledImages
from adagauss.drift.health import collapse_warning
from adagauss.knowledge import Knowledge
from adagauss.methods import Method
from adagauss.state import Learned
from adagauss.task import CurrentTask
from adagauss.training import History
from adagauss.utils.runtime import Runtime


@dataclass
class TaskReport:
    """What learning a task took."""

    history: History = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: representation, drift, memory, classifier, evidence."""
    warnings: list[str] = field(default_factory=list)
    """Sentences on what went wrong, each with a remedy."""

    def warn(self, text: str | None, runtime: Runtime) -> None:
        """Note a warning, and say it."""
        if text is not None:
            self.warnings.append(text)
            runtime.reporter.message(text)

    @contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Adds the wall time of what is done meanwhile to a stage."""
        started = perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - started


def learn_task(
    method: Method, before: Knowledge, data: LabelledImages, runtime: Runtime
) -> tuple[Knowledge, TaskReport]:
    """What is known after a task; ``before`` stays as it is.

    The images are held by ``now`` and its parts alone, and die with them. Network and drift see the part ``seen``;
    memory and classifier learn from all images, and may first be tried without some that then judge them.
    """
    later = method.representation.later is not None
    # A network that nothing will change is known before and after the task alike: copies would only take time.
    still = bool(before.tasks) and not later and not method.classifier.changes_network
    network = before.network if still else copy.deepcopy(before.network)
    previous = before.network.frozen_copy() if before.tasks and later else None
    of_terms = before.states_below("representation/")
    shared = method.representation.shares(of_terms)
    known, index = tuple(before.classes), len(before.tasks)
    now = CurrentTask(index, data, network, previous, method.augmentation, runtime, shared, known)
    trains = (method.representation.first if now.first else method.representation.later) is not None
    seen = method.evidence.seen(now, trains)
    report = TaskReport()
    states: dict[str, Learned | None] = {}

    with report.clock("representation"):
        if now.first:
            network.extractor.prepare(data.images, runtime.generator("unlabelled"))
        trained = method.representation.fit(seen, before.memory, of_terms)
        report.history = trained.history
        now.forget_features()
        if now.first:
            network.extractor.end_first_task()
        network.eval()

    old = before.memory
    with report.clock("drift"):
        states["drift"] = before.states.get("drift")
        if previous is not None:
            moved = method.drift.update(old, seen, before.states.get("drift"))
            old, states["drift"] = method.memory.after_drift(old, moved.memory), moved.state
            report.warn(moved.warning, runtime)

    with report.clock("memory"):
        memory, states["memory"] = method.memory.update(old, now, before.states.get("memory"))
        if old is not before.memory:
            report.warn(collapse_warning(now.name, old, memory), runtime)

    affordable = seen is not now or (not trains and method.classifier.cheap)

    @cache
    def attempt() -> Trial | None:
        possible = affordable and not method.classifier.changes_network
        part = method.evidence.tried(now, seen) if possible else now
        if part is now:
            return None
        bank = method.memory.update(old, part, before.states.get("memory")).bank
        return Trial(bank, method.classifier.fit(bank, part, before.states.get("classifier")), part.others())

    with report.clock("classifier"):
        fitted = method.classifier.update(memory, now, before.states.get("classifier"), attempt)
        states["classifier"] = fitted.scorer

    with report.clock("evidence"):
        states["evidence"] = method.evidence.update(before.states.get("evidence"), now, attempt, fitted, memory)

    with report.clock("representation"):
        left = of_terms if trained.parts is None else method.representation.finish(trained.parts, now, memory)
        states.update({f"representation/{name}": state for name, state in left.items()})

    kept = {name: state for name, state in states.items() if state is not None}
    after = Knowledge(network, memory, kept, (*before.tasks, tuple(data.classes)))
    runtime.processes.agree(after)
    return after, report
