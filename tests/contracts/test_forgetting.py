"""Methods against forgetting forget less than fine-tuning does."""

from __future__ import annotations

import functools

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.data.images import LabelledImages, Subset
from adagauss.methods import dataset_layers, make_method, methods
from adagauss.utils.runtime import Runtime
from tests.contracts.toy import LEARNING, digits, thorough

AGAINST_FORGETTING = [
    name for name in thorough(LEARNING) if methods()[name].family in ("regularisation", "prototype replay")
]


def some(part: LabelledImages, classes: tuple[int, ...], each: int) -> LabelledImages:
    rows = torch.cat([torch.nonzero(part.targets == digit).flatten()[:each] for digit in classes])
    return LabelledImages(Subset(part.images, rows), part.targets[rows], part.classes).of_classes(classes)


@functools.cache
def kept(name: str) -> float:
    """Accuracy on the first of two tasks after the second."""
    epochs = {f"representation.{when}.epochs": 4 for when in ("first", "later")}
    method = make_method(name, settings=epochs, layers=dataset_layers("digits"))
    learner = Learner(method, (1, 8, 8), digits().mean, digits().std, Runtime(seed=3))
    for classes in ((0, 1), (2, 3)):
        learner.learn(some(digits().train, classes, 40))
    old = some(digits().test, (0, 1), 50)
    return sum(a == b for a, b in zip(learner.predict(old.images), old.labels, strict=True)) / len(old)


def test_these_are_among_them() -> None:
    assert {*AGAINST_FORGETTING} >= {"ewc", "pass", "ssre"}


@pytest.mark.parametrize("name", AGAINST_FORGETTING)
def test_old_classes_are_kept_better_than_by_fine_tuning(name: str) -> None:
    """Fine-tuning over all outputs forgets the first task; each of these keeps a good part of it."""
    assert kept(name) > kept("finetune") + 0.2
