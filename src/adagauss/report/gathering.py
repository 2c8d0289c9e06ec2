"""Runs, read from their folders as far as they have come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from adagauss.core.learn import Learner
from adagauss.data.images import Label
from adagauss.errors import AdagaussError, CheckpointError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.environment import DATA, ENVIRONMENT
from adagauss.experiments.metrics import Evaluation, accuracy_matrix, mean, summary
from adagauss.experiments.run import Cost, RunFolder, TaskFacts, stored_config

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Gathered:
    """A run with at least one finished task."""

    folder: RunFolder
    config: RunConfig
    evaluations: Sequence[Evaluation]
    """After each finished task."""
    facts: Sequence[TaskFacts]
    labels: Sequence[Label]
    """Classes in the order they were learned."""

    @property
    def done(self) -> int:
        """Number of finished tasks."""
        return len(self.evaluations)

    @property
    def tasks(self) -> int:
        """Number of tasks that the run has when it is finished."""
        stream = self.config.stream
        return len(stream.sizes) if stream.sizes else stream.tasks

    @property
    def finished(self) -> bool:
        return self.done >= self.tasks

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of classes of each finished task."""
        return self.evaluations[-1].sizes

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Every metric by name, over the finished tasks."""
        return summary(self.evaluations)

    @cached_property
    def matrix(self) -> list[list[float]]:
        """Row t: accuracy on each task after task t."""
        return accuracy_matrix(self.evaluations)

    @cached_property
    def curve(self) -> list[float]:
        """Accuracy on all seen classes after each task."""
        return [mean(row) for row in self.matrix]

    @cached_property
    def confusion(self) -> Counts:
        """Counts after the last finished task; rows are true classes, in the order of ``labels``."""
        counts: Counts = self.evaluations[-1].confusion().numpy()
        return counts

    @cached_property
    def cost(self) -> Cost:
        """Times over the finished tasks; speed and size after the last one."""
        return Cost.of(self.facts)

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Versions and machine; empty if they were not kept."""
        return _texts(self.folder.read_json_or_nothing(ENVIRONMENT))

    @cached_property
    def data(self) -> Mapping[str, str]:
        """Fingerprints of the data; empty if they were not kept."""
        return _texts(self.folder.read_json_or_nothing(DATA))

    @property
    def has_learner(self) -> bool:
        """Whether the learner after the last finished task was kept."""
        return self.folder.checkpoint(self.done - 1).exists()

    def learner(self) -> Learner | None:
        """The learner after the last finished task; None if its file is gone or cannot be read."""
        try:
            return Learner.load(self.folder.checkpoint(self.done - 1))
        except AdagaussError:
            return None


@dataclass(frozen=True)
class LeftOut:
    """A run that the report does not show, and why."""

    path: Path
    reason: str


def gather(
    folders: Sequence[Path], tell: Callable[[str], None] = lambda _: None
) -> tuple[list[Gathered], list[LeftOut]]:
    """The runs in these folders, and those that cannot be shown; ``tell`` is called with the name of each one read."""
    runs: list[Gathered] = []
    without: list[LeftOut] = []
    for path in folders:
        try:
            runs.append(read_run(path))
        except AdagaussError as error:
            without.append(LeftOut(path, str(error)))
        tell(path.name)
    return runs, without


def read_run(path: Path) -> Gathered:
    """One run, as far as it has come; one without a finished task is refused."""
    folder = RunFolder(path)
    config = stored_config(folder)
    folder.last_checkpoint()  # refuses a run without a finished task
    evaluations, facts = zip(*(folder.evaluation(index) for index in range(folder.finished_tasks())), strict=True)
    _check_growth(path, evaluations)
    return Gathered(folder, config, evaluations, facts, _labels(folder, evaluations[-1]))


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Each of these folders once, or instead of one that holds run folders, such as ``compare`` writes, those."""
    found: dict[Path, Path] = {}
    for path in paths:
        inner = [] if RunFolder(path).exists() else sorted(one.parent for one in path.glob("*/config.yaml"))
        for one in inner or [path]:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def _check_growth(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """Each evaluation must be of one task more than the one before it."""
    last = evaluations[-1].sizes
    for index, evaluation in enumerate(evaluations):
        if evaluation.sizes != last[: index + 1]:
            raise CheckpointError(
                f"{path}: the evaluations of its tasks do not belong to one run (task {index + 1} has "
                f"{list(evaluation.sizes)} classes, the last one {list(last)}): run it again in another folder"
            )


def _labels(folder: RunFolder, last: Evaluation) -> Sequence[Label]:
    """Class names in the order of learning: from the results if the run is finished, else from its newest learner."""
    count = sum(last.sizes)
    try:
        classes = folder.result().protocol.classes
        labels: list[Label] = [label for task in classes for label in task]
        if len(labels) == count:
            return labels
    except AdagaussError:
        pass  # an unfinished run has no results
    try:
        labels = list(Learner.load(folder.last_checkpoint()).classes)
        if len(labels) == count:
            return labels
    except AdagaussError:
        pass  # a removed or damaged learner: the page is about the answers, which are there
    return [f"class {number + 1}" for number in range(count)]


def _texts(content: Mapping[str, object]) -> dict[str, str]:
    return {str(key): str(value) for key, value in content.items()}
