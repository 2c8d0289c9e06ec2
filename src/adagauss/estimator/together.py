"""Learning a task in several processes, for a classifier that lives in one."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import asdict
from pathlib import Path

from adagauss.core.class_edits import on_device
from adagauss.core.learn import Learner, TaskReport
from adagauss.data.images import LabelledImages
from adagauss.distributed.launch import Layout, launch, processes_here
from adagauss.distributed.processes import Processes
from adagauss.estimator.choices import progress_reporter
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime, RuntimeConfig


def learn_with(devices: int, learner: Learner, data: LabelledImages) -> TaskReport:
    """Teach a learner in ``devices`` processes; it stays as it was if one of them fails."""
    layout, config = Layout(devices), learner.runtime.config
    if not layout.several:
        return learner.learn(data)
    layout.check(config)
    if processes_here() is not None:  # this process is one of them
        reports: list[TaskReport] = []
        launch(_learn, layout, config, learner, data, reports)
        return reports[0]
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "before"), Path(folder, "after")
        learner.save(before)
        shown = type(learner.runtime.reporter) is not Reporter  # a terminal cannot be sent
        launch(_learn_from_file, layout, config, before, after, config, data, shown)
        taught = Learner.load(after, learner.runtime)
        report = TaskReport(**taught.about["report"])
    learner.state, learner.scale = taught.state, taught.scale
    return report


def _learn(processes: Processes, learner: Learner, data: LabelledImages, reports: list[TaskReport]) -> None:
    """Learn where each process is one that torchrun started; predictions stay up to each by itself."""
    alone, there = learner.runtime, copy.copy(learner)
    reporter = alone.reporter if processes.first else Reporter()
    there.runtime = Runtime(alone.config, alone.seed, reporter, processes=processes)
    there.state = on_device(learner.state, there.runtime)
    reports.append(there.learn(data))
    learner.state, learner.scale = on_device(there.state, alone), there.scale


def _learn_from_file(
    processes: Processes, before: Path, after: Path, config: RuntimeConfig, data: LabelledImages, shown: bool
) -> None:
    """Learn where each process was started for it."""
    reporter = progress_reporter(shown and processes.first)
    learner = Learner.load(before, Runtime(config, reporter=reporter, processes=processes))
    report = learner.learn(data)
    if processes.first:
        learner.save(after, about={"report": asdict(report)})
