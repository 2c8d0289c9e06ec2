"""Metrics of class-incremental learning, as pure functions of predictions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from adagauss.errors import ConfigError
from adagauss.utils.registry import Registry


@dataclass(frozen=True)
class Evaluation:
    """Predictions for the test images of every class seen so far, after one task.

    Classes are numbered in the order they were learned; ``sizes`` are the numbers of classes per task.
    """

    true: Tensor
    predicted: Tensor
    task_aware: Tensor
    """Predictions restricted to the classes of the image's own task."""
    sizes: tuple[int, ...]

    def check(self) -> None:
        """Raise a `ValueError` unless every number is one of a class."""
        classes = sum(self.sizes)
        if not self.sizes or min(self.sizes) < 1 or classes > len(self.true) or self.true.ndim != 1:
            raise ValueError("it has no test image for some class")
        for numbers in (self.true, self.predicted, self.task_aware):
            if numbers.shape != self.true.shape or numbers.dtype != torch.int64:
                raise ValueError("it does not have one prediction per test image")
            if int(numbers.min()) < 0 or int(numbers.max()) >= classes:
                raise ValueError("it has predictions of unknown classes")

    @property
    def task_of_class(self) -> Tensor:
        """The task each class belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes))

    def accuracy_per_task(self, task_aware: bool = False) -> list[float]:
        """Accuracy on the test images of each task, over all seen classes (or within the task)."""
        hits = ((self.task_aware if task_aware else self.predicted) == self.true).double()
        tasks = self.task_of_class[self.true]
        return [float(hits[tasks == task].mean()) for task in range(len(self.sizes))]

    def accuracy(self) -> float:
        """Accuracy pooled over all test images."""
        return float((self.predicted == self.true).double().mean())

    def prediction_share(self) -> list[float]:
        """Share of all predictions that are classes of each task; without bias, the task's share of the classes."""
        tasks = self.task_of_class[self.predicted]
        return (torch.bincount(tasks, minlength=len(self.sizes)) / len(tasks)).tolist()

    def confusion(self) -> Tensor:
        """(C, C) counts, rows the true class and columns the predicted one."""
        classes = sum(self.sizes)
        return torch.bincount(self.true * classes + self.predicted, minlength=classes * classes).view(classes, classes)


def task_aware_predictions(scores: Tensor, true: Tensor, sizes: Sequence[int]) -> Tensor:
    """argmax restricted to the classes of each image's own task."""
    task = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))
    outside = task[None, :] != task[true][:, None]
    return scores.cpu().masked_fill(outside, -torch.inf).argmax(1)


def accuracy_matrix(evaluations: Sequence[Evaluation], task_aware: bool = False) -> list[list[float]]:
    """Row t holds a_{t,k}, k ≤ t: the accuracy on task k after task t."""
    return [evaluation.accuracy_per_task(task_aware) for evaluation in evaluations]


def forgetting(matrix: Sequence[Sequence[float]]) -> float:
    """Mean over old tasks of the best accuracy before the last task minus the final accuracy; 0 with a single task."""
    last = matrix[-1]
    drops = [max(row[k] for row in matrix[k:-1]) - last[k] for k in range(len(matrix) - 1)]
    return mean(drops)


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float:
    """Mean over old tasks of the last accuracy minus the one right after learning; 0 with a single task."""
    return mean([matrix[-1][k] - matrix[k][k] for k in range(len(matrix) - 1)])


def plasticity(matrix: Sequence[Sequence[float]]) -> float:
    """Mean accuracy on a task right after it was learned, from the second task on."""
    return mean([matrix[k][k] for k in range(1, len(matrix))])


def _of_matrix(metric: Callable[[list[list[float]]], float]) -> Callable[[Sequence[Evaluation]], float]:
    return lambda evaluations: metric(accuracy_matrix(evaluations))


@dataclass(frozen=True)
class Metric:
    """A measure of how good a run was."""

    name: str
    title: str
    compute: Callable[[Sequence[Evaluation]], float]
    """Computes it from the evaluations after each task."""
    percent: bool = True
    """Whether it is a fraction, to be shown in percent."""
    better: Literal["higher", "lower"] = "higher"
    compared: bool = True
    """Whether tables that compare methods show it."""

    def of(self, evaluations: Sequence[Evaluation]) -> float:
        """Its value; NaN, with a warning, if it cannot be computed, so that the other results remain."""
        try:
            value, reason = float(self.compute(evaluations)), "NaN"
        except Exception as error:  # code of a plugin may raise anything
            value, reason = math.nan, f"{type(error).__name__}: {error}"
        if math.isnan(value):
            warnings.warn(f"the metric {self.name!r} is not available ({reason}): correct its code", stacklevel=2)
        return value


METRICS = (
    Metric("a_last", "A_last", _of_matrix(lambda matrix: mean(matrix[-1]))),
    Metric("a_inc", "A_inc", _of_matrix(lambda matrix: mean([mean(row) for row in matrix]))),
    Metric("forgetting", "forgetting", _of_matrix(forgetting), better="lower"),
    Metric("plasticity", "plasticity", _of_matrix(plasticity)),
    Metric("backward_transfer", "backward transfer", _of_matrix(backward_transfer), compared=False),
    Metric("a_last_pooled", "A_last, per image", lambda runs: runs[-1].accuracy(), compared=False),
    Metric("a_inc_pooled", "A_inc, per image", lambda runs: mean([run.accuracy() for run in runs]), compared=False),
    Metric("task_aware_last", "task-aware", lambda runs: mean(runs[-1].accuracy_per_task(True)), compared=False),
)
"""Metrics of the library; the first one ranks methods. A_last and A_inc weight tasks equally, unless "per image"."""
_CUSTOM: Registry[Metric] = Registry("metric")
Compute = Callable[[Sequence[Evaluation]], float]


def register_metric(name: str, title: str, **facts: Any) -> Callable[[Compute], Compute]:
    """Register a function of the evaluations after each task; ``facts`` are other fields of `Metric`."""

    def register(compute: Compute) -> Compute:
        if name in {metric.name for metric in METRICS}:
            raise ConfigError(f"the metric {name!r} exists: choose another name")
        _CUSTOM.register(name, Metric(name, title, compute, **facts), by=compute)
        return compute

    return register


def metrics() -> tuple[Metric, ...]:
    """All metrics: those of the library, then those of plugins."""
    return (*METRICS, *_CUSTOM.all().values())


def summary(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Every metric by name."""
    return {metric.name: metric.of(evaluations) for metric in metrics()}


def mean(values: Sequence[float]) -> float:
    """The mean; 0 for no values."""
    return sum(values) / len(values) if values else 0.0
