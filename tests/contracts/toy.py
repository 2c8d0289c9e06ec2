"""A small stream that has everything awkward: uneven tasks, a task of one class, string labels, few images."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adagauss.backbones import Backbone, BackboneSpec, register_backbone
from adagauss.backbones.resnet import ConvNet
from adagauss.core.config import Layer, flatten, plain
from adagauss.core.learn import Learner, TaskReport
from adagauss.core.learner_state import LearnerState
from adagauss.data.dataset import Dataset, load_dataset
from adagauss.data.images import ArrayImages, Images, LabelledImages
from adagauss.methods import Method, dataset_layers, make_method, methods
from adagauss.utils.runtime import Runtime
from tests.faults.budget import TORTURE

NAMES = ("zero", "one", "two", "three", "four", "five")
SIZES = (2, 1, 3)
IMAGES = 30

LEARNING = sorted(name for name, info in methods().items() if info.family != "upper bound")
"""Methods that learn from the current task alone."""

REPRESENTATIVE = {"adagauss", "sdc", "ewc", "efc", "pass", "ssre", "acil", "analytic-patches", "frozen"}
"""Between them these use every role: trained and frozen networks, kept outputs, Gaussians, drift, running sums."""


def thorough(names: Sequence[str]) -> list[str]:
    """The methods of a full contract: representative ones, or all of them in `make torture`."""
    return [name for name in names if TORTURE > 1 or name in REPRESENTATIVE]


QUICK = {
    "representation.first.epochs": 2,
    "representation.later.epochs": 2,
    "representation.first.batch_size": 16,
    "representation.later.batch_size": 16,
    "drift.recipe.epochs": 2,
    "drift.recipe.batch_size": 16,
    "drift.adam.epochs": 2,
    "drift.samples": 64,
    "drift.views": 1,
    "classifier.recipe.epochs": 2,
    "classifier.samples": 64,
    "classifier.expansion_size": 48,
    "classifier.random_features": 48,
    "backbone.options.filters": 16,
    "backbone.options.patches.filters": 16,
    "backbone.name": "toy",
    "backbone.features": 24,
}
"""Settings that make any method quick; each method takes those that it has."""

STAND_INS = {
    "analytic-pretrained": [Layer("stand-in", {"backbone.name": "convnet"})],
    "ranpac": [Layer("stand-in", {"backbone.name": "convnet"})],
    "analytic": [Layer("stand-in", {"backbone.options.pretrained": "convnet"})],
}
"""A small random network in the place of a pretrained one, where that is what a method is made of."""


@register_backbone("toy", summary="the network of the demo, narrower, for tests", non_negative=True)
def toy_network(spec: BackboneSpec) -> Backbone:
    """Contracts spend most of their time in convolutions, and need no wide ones."""
    return ConvNet(spec.channels, width=12)


@functools.cache
def digits() -> Dataset:
    """The dataset behind the stream, read once."""
    return load_dataset("digits")


def quick_method(name: str, preset: str | None = None, **settings: object) -> Method:
    """A registered method, made quick. Its batches (16) are smaller than its features where it has a bottleneck."""
    layers = [*dataset_layers("digits"), Layer("quick", QUICK, strict=False), *STAND_INS.get(name, ())]
    return make_method(name, preset, settings, layers)


def toy_images(labels: Sequence[str] = NAMES, test: bool = False) -> LabelledImages:
    """Some digits with string labels."""
    part = digits().test if test else digits().train
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


def learner_of(method: Method) -> Learner:
    """A learner of such images that knows nothing yet."""
    return Learner(method, digits().train.images.shape, digits().mean, digits().std, Runtime())


def toy_learner(name: str, preset: str | None = None, **settings: object) -> Learner:
    """A learner that knows nothing yet."""
    return learner_of(quick_method(name, preset, **settings))


READ_LATE: list[str] = []
"""Images of `taught_method` that were read after their task."""


class WatchedImages:
    """Images of one task; reading them later is recorded."""

    def __init__(self, images: Images) -> None:
        self.pixels = images.batch(torch.arange(len(images)))
        self.shape: tuple[int, int, int] = images.shape
        self.over = False

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Tensor) -> Tensor:
        if self.over:
            READ_LATE.append(f"images {indices.tolist()}")
        return self.pixels[indices]


class Taught(NamedTuple):
    """The state after some tasks, the report of the last one, and a weak reference to its images."""

    state: LearnerState
    report: TaskReport
    images: list[weakref.ref[WatchedImages]]


@functools.cache
def taught_method(method: Method, tasks: int) -> Taught:
    """The first tasks of the stream, learned once per worker: states are immutable, so tests may share them."""
    learner = learner_of(method)
    if tasks > 1:
        learner.state = taught_method(method, tasks - 1).state
    task = toy_tasks()[tasks - 1]
    images = WatchedImages(task.images)
    report = learner.learn(LabelledImages(images, task.targets, task.classes))
    images.over = True
    return Taught(learner.state, report, [weakref.ref(images)])


def taught(name: str, tasks: int = len(SIZES), preset: str | None = None, **settings: object) -> Learner:
    """A learner of its own that knows the first tasks."""
    learner = toy_learner(name, preset, **settings)
    learner.state = taught_method(learner.method, tasks).state
    return learner


def longer(name: str, preset: str | None = None) -> dict[str, Any]:
    """Settings under which the first task is learned well."""
    known = flatten(plain(make_method(name, preset)))
    return {key: 12 for key in ("representation.first.epochs", "classifier.recipe.epochs") if key in known}


def scores(learner: Learner) -> Tensor:
    """Scores of the test images."""
    return learner.scores(learner.features(toy_images(test=True).images))


def accuracy(learner: Learner, classes: Sequence[str] = NAMES) -> float:
    """Share of the test images of some classes that are predicted right."""
    test = toy_images(test=True).of_classes(classes)
    hits = [guess == label for guess, label in zip(learner.predict(test.images), test.labels, strict=True)]
    return sum(hits) / len(hits)


def state(learner: Learner) -> dict[str, Tensor]:
    """A copy of everything that has been learned."""
    return {name: tensor.clone() for name, tensor in learner.state.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two states have the same names and bit-identical numbers."""
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())
