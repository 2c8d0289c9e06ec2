"""Learning a task in several processes, for a classifier that lives in one."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import asdict
from pathlib import Path

from adagauss.algorithm import TaskReport
from adagauss.data.images import LabelledImages
from adagauss.learner import Learner
from adagauss.parallel import Processes
from adagauss.parallel.launching import Layout, processes_here, together
from adagauss.progress import Reporter
from adagauss.runtime import Runtime, RuntimeConfig


def learn_with(devices: int, learner: Learner, data: LabelledImages) -> TaskReport:
    """Teach a learner in ``devices`` processes; it stays as it was if one of them fails."""
    layout, config = Layout(devices), learner.runtime.config
    if not layout.several:
        return learner.learn(data)
    layout.check(config)
    if processes_here() is not None:  # this process is one of them
        reports: list[TaskReport] = []
        together(_learn, layout, config, learner, data, reports)
        return reports[0]
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before"), Path(folder, "after")
        learner.save(before)
        together(_learn_from_file, layout, config, before, after, config, data)
        taught = Learner.load(after, learner.runtime)
        report = TaskReport(**taught.about["report"])
    for text in report.warnings:
        learner.runtime.reporter.message(text)
    learner.knowledge, learner.scale = taught.knowledge, taught.scale
    return report


def _learn(processes: Processes, learner: Learner, data: LabelledImages, reports: list[TaskReport]) -> None:
    alone = learner.runtime
    learner.runtime = copy.copy(alone)
    learner.runtime.processes = processes
    learner.runtime.reporter = alone.reporter if processes.first else Reporter()
    try:
        reports.append(learner.learn(data))
    finally:
        learner.runtime = alone  # predictions are up to each process


def _learn_from_file(
    processes: Processes, before: Path, after: Path, config: RuntimeConfig, data: LabelledImages
) -> None:
    learner = Learner.load(before, Runtime(config, processes=processes))
    report = learner.learn(data)
    if processes.first:
        learner.save(after, about={"report": asdict(report)})
