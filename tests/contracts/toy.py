"""A small stream that has everything awkward: uneven tasks, a task of one class, string labels, few images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adagauss.data.dataset import load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.learner import Learner
from adagauss.methods import Method, make_method
from adagauss.methods.traits import dataset_layers
from adagauss.runtime import Runtime
from adagauss.settings import Layer

NAMES = ("zero", "one", "two", "three", "four", "five")
SIZES = (2, 1, 3)
IMAGES = 30

QUICK = {
    "representation.first.epochs": 2,
    "representation.later.epochs": 2,
    "representation.first.batch_size": 16,
    "representation.later.batch_size": 16,
    "drift.recipe.epochs": 2,
    "drift.recipe.batch_size": 16,
    "drift.samples": 64,
    "drift.views": 1,
    "classifier.recipe.epochs": 2,
    "classifier.samples": 64,
    "classifier.width": 64,
    "backbone.name": "convnet",
    "backbone.features": 24,
}
"""Settings that make any method quick; each method takes those that it has."""


def quick_method(name: str, **settings: object) -> Method:
    """A registered method, made quick. Its batches (16) are smaller than its features where it has a bottleneck."""
    layers = [*dataset_layers("digits"), Layer("quick", QUICK, strict=False)]
    return make_method(name, settings=settings, layers=layers)


def toy_images(labels: Sequence[str] = NAMES, test: bool = False) -> LabelledImages:
    """Some digits, named in words."""
    digits = load_dataset("digits")
    part = digits.test if test else digits.train
    rows = torch.cat([torch.nonzero(part.targets == digit).flatten()[:IMAGES] for digit in range(len(labels))])
    pixels = part.images.batch(rows)
    return LabelledImages.from_labels(ArrayImages(pixels), [labels[target] for target in part.targets[rows].tolist()])


def toy_tasks(labels: Sequence[str] = NAMES) -> list[LabelledImages]:
    """The stream."""
    data, tasks, start = toy_images(labels), [], 0
    for size in SIZES:
        tasks.append(data.of_classes(labels[start : start + size]))
        start += size
    return tasks


def toy_learner(name: str, seed: int = 0, **settings: object) -> Learner:
    """A learner that knows nothing yet."""
    digits = load_dataset("digits")
    return Learner(
        quick_method(name, **settings), digits.train.images.shape, digits.mean, digits.std, Runtime(seed=seed)
    )


def taught(name: str, tasks: int = len(SIZES), labels: Sequence[str] = NAMES) -> Learner:
    """A learner that knows the first tasks."""
    learner = toy_learner(name)
    for task in toy_tasks(labels)[:tasks]:
        learner.learn(task)
    return learner


def scores(learner: Learner) -> Tensor:
    """Scores of the test images."""
    return learner.scores(learner.features(toy_images(test=True).images))
