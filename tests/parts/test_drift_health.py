"""An adapter that has not learned the change of the features is reported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.core.train import Recipe
from adagauss.data.dataset import load_dataset
from adagauss.data.images import LabelledImages, Subset
from adagauss.methods import make_method
from adagauss.parts.drift import Adapter, collapse_warning, relative_error, view_batches
from adagauss.utils.progress import Reporter
from adagauss.utils.runtime import Runtime
from tests.parts.test_drift import NEW, OLD, TRUE, memory, task_of

FEW = Recipe(epochs=1, batch_size=400, learning_rate=1e-4, clip_norm=1.0)


def hasty(**settings: Any) -> Adapter:
    """An adapter of a single step."""
    return Adapter(**{"recipe": FEW, "min_steps": 0, "views": 1, "samples": 500, **settings})


@pytest.mark.parametrize(("least", "epochs", "passes"), [(0, 3, 1), (12, 3, 1), (13, 3, 2), (100, 3, 9), (100, 50, 1)])
def test_few_batches_are_passed_over_until_there_are_enough_steps(least: int, epochs: int, passes: int) -> None:
    recipe = Recipe(epochs=epochs, batch_size=100)
    batches = view_batches(OLD, NEW, 1, recipe, least)
    assert batches.passes == passes
    assert len(list(batches.epoch(0, torch.Generator()))) == len(batches) == 4 * passes
    assert epochs * len(batches) >= least


def test_the_relative_error_of_a_map_is_that_of_its_residuals() -> None:
    assert relative_error(TRUE(OLD), NEW) == pytest.approx(0, abs=1e-10)
    assert relative_error(NEW.mean(0).expand_as(OLD), NEW) == pytest.approx(1)


def test_an_adapter_of_one_step_is_warned_of_with_remedies() -> None:
    now = task_of()
    hasty().move(memory(), now)
    (warning,) = now.warnings
    assert warning.startswith("task 2: the adapter has hardly learned")
    assert all(name in warning for name in ("min_steps", "drift.kind=affine"))


def test_enough_steps_leave_nothing_to_warn_of() -> None:
    trained = hasty(min_steps=600, recipe=FEW.with_changes(learning_rate=0.05), anti_collapse=0.0)
    now = task_of()
    trained.move(memory(), now)
    assert not now.warnings


def test_collapsed_gaussians_are_detected_by_their_log_variances() -> None:
    new = copy.deepcopy(memory())
    new.labels = ["c", "d"]
    warnings = []
    for factor in (1.0, 0.2, 0.01):
        old = memory().with_statistics(memory().means, factor * memory().covariances)
        both = old.copy()
        both.merge(new)
        warnings.append(collapse_warning("task 2", old, both))
    assert warnings[:2] == [None, None]
    assert "collapsed" in str(warnings[2])
    assert "drift.kind=affine" in str(warnings[2])


class Listening(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


def digits_after(**settings: Any) -> tuple[float, list[str], list[str]]:
    """Accuracy on all digits after three tasks of 60 images per class, and the warnings, and the messages."""
    dataset, reporter = load_dataset("digits"), Listening()
    chosen = {"backbone.name": "convnet", "backbone.features": 16, "drift.width": 8, **settings}
    chosen = {key: value for key, value in chosen.items() if "drift" not in settings or key != "drift.width"}
    method = make_method("adagauss", None, chosen, epochs=3)
    runtime = Runtime(reporter=reporter)
    learner = Learner(method, dataset.train.images.shape, dataset.mean, dataset.std, runtime)
    warned = []
    for task in ((0, 1), (2, 3), (4, 5)):
        data = dataset.train.of_classes([dataset.classes[index] for index in task])
        rows = torch.cat([(data.targets == target).nonzero().flatten()[:60] for target in range(2)])
        few = LabelledImages(Subset(data.images, rows), data.targets[rows], data.classes)
        warned += learner.learn(few).warnings
    test = dataset.test.of_classes(learner.classes)
    right = learner.scores(learner.features(test.images)).argmax(1).cpu() == test.targets
    return float(right.double().mean()), warned, reporter.said


def test_an_adapter_of_few_steps_costs_accuracy_and_is_reported() -> None:
    frozen, _, _ = digits_after(drift={"kind": "none"})
    broken, warned, said = digits_after()
    affine, _, _ = digits_after(drift={"kind": "affine", "residual_covariance": 1.0})
    assert broken < frozen - 0.1
    assert warned
    assert said == warned
    assert affine > frozen - 0.03
