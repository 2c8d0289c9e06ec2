"""Metrics of class-incremental learning, as pure functions of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Evaluation:
    """Predictions for the test images of every class seen so far, after one task.

    Classes are numbered in the order they were taught; ``sizes`` are the classes of each task.
    """

    true: Tensor
    predicted: Tensor
    task_aware: Tensor
    """Predictions among the classes of the image's own task."""
    sizes: tuple[int, ...]

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
        """Share of all predictions that fall among each task's classes; equal to the classes' share without bias."""
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
    """Mean over old tasks of the best accuracy before the last task minus the last one; 0 with a single task."""
    last = matrix[-1]
    drops = [max(row[k] for row in matrix[k:-1]) - last[k] for k in range(len(matrix) - 1)]
    return _mean(drops)


def backward_transfer(matrix: Sequence[Sequence[float]]) -> float:
    """Mean over old tasks of the last accuracy minus the one right after learning; 0 with a single task."""
    return _mean([matrix[-1][k] - matrix[k][k] for k in range(len(matrix) - 1)])


def plasticity(matrix: Sequence[Sequence[float]]) -> float:
    """Mean accuracy on a task right after it was learned, from the second task on."""
    return _mean([matrix[k][k] for k in range(1, len(matrix))])


def summary(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Every metric by name; ``pooled`` counts images alike, ``task_mean`` counts tasks alike."""
    matrix = accuracy_matrix(evaluations)
    aware = accuracy_matrix(evaluations, task_aware=True)
    pooled = [evaluation.accuracy() for evaluation in evaluations]
    task_mean = [_mean(row) for row in matrix]
    return {
        "a_last": {"pooled": pooled[-1], "task_mean": task_mean[-1]},
        "a_inc": {"pooled": _mean(pooled), "task_mean": _mean(task_mean)},
        "accuracy_after_task": {"pooled": pooled, "task_mean": task_mean},
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
        "plasticity": plasticity(matrix),
        "task_aware_last": _mean(aware[-1]),
        "prediction_share": evaluations[-1].prediction_share(),
        "accuracy_matrix": matrix,
        "task_aware_matrix": aware,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
