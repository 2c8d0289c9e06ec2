"""The networks of a finished run one after another, each with its task as `learn_task` saw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.learner_state import LearnerState
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.data.stream import TaskStream
from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import RunFolder
from adagauss.methods import Method
from adagauss.parts.drift import Moved
from adagauss.parts.memory import Memory
from adagauss.utils.runtime import Runtime


@dataclass(frozen=True)
class Visit:
    """A finished task: what was known after it, and the task itself with the networks before and after."""

    index: int
    known: LearnerState
    now: CurrentTask


def visits(folder: RunFolder, config: RunConfig, stream: TaskStream, runtime: Runtime) -> Iterator[Visit]:
    """Every finished task of a run, from its checkpoints; two networks are in memory at a time."""
    method = config.method
    before: LearnerState | None = None
    for index in range(folder.finished_tasks()):
        known = Learner.load(folder.checkpoint(index), Runtime(config.runtime, config.seed)).state
        previous = before.network.frozen_copy() if before else None
        shared = method.representation.shares(before.states_below("representation/")) if before else {}
        classes = tuple(before.classes) if before else ()
        train = stream[index].train
        yield Visit(
            index,
            known,
            CurrentTask(index, train, known.network, previous, method.augmentation, runtime, shared, classes),
        )
        before = known


class Followed(NamedTuple):
    """A memory that a drift has updated, and the states of the two parts."""

    bank: ClassGaussians
    drift: State | None = None
    memory: State | None = None


Update = Callable[[ClassGaussians, State | None], Moved]
"""Moves a bank into the features of the current task, as `Drift.update`."""


def followed(known: Followed | None, update: Update, memory: Memory, method: Method, now: CurrentTask) -> Followed:
    """The memory after a task, as `Learner.learn` would build it with this drift and memory part."""
    known = known or Followed(memory.empty(now.network.extractor.size, now.runtime.device))
    bank, state = known.bank, known.drift
    if not now.first and method.representation.later is not None:
        moved = update(bank, state)
        bank, state = memory.after_drift(bank, moved.memory), moved.state
    remembered = memory.update(bank, now, known.memory)
    return Followed(remembered.bank, state, remembered.state)


def task_mean(scores: Tensor, targets: Tensor, sizes: Sequence[int]) -> float:
    """Mean over tasks of the accuracy on their images; ``sizes`` are the numbers of classes per task."""
    hits = (scores.argmax(1).cpu() == targets).double()
    tasks = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))[targets]
    return float(torch.stack([hits[tasks == task].mean() for task in range(len(sizes))]).mean())
