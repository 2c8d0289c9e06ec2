"""What every registered method must do; a new method is tested by being there."""

from __future__ import annotations

import functools
import gc
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from adagauss.core.config import Requirement, plain
from adagauss.core.learn import Learner
from adagauss.data.dataset import dataset_info
from adagauss.data.images import LabelledImages, Subset
from adagauss.methods import Method, dataset_layers, make_method, methods
from tests.contracts.toy import (
    LEARNING,
    NAMES,
    READ_LATE,
    SIZES,
    accuracy,
    longer,
    quick_method,
    same,
    scores,
    state,
    taught,
    taught_method,
    thorough,
    toy_images,
    toy_learner,
    toy_tasks,
)

every_method = pytest.mark.parametrize("name", LEARNING)
representative_methods = pytest.mark.parametrize("name", thorough(LEARNING))


@every_method
def test_scores_every_class_of_uneven_and_single_class_tasks(name: str) -> None:
    learner = taught(name)
    assert [len(task) for task in learner.tasks] == list(SIZES)
    values = scores(learner)
    assert values.shape == (len(toy_images(test=True)), len(NAMES))
    assert torch.isfinite(values).all()


@every_method
def test_predicts_string_labels_with_probabilities_that_sum_to_one(name: str) -> None:
    learner = taught(name)
    images = toy_images(test=True).images
    assert set(learner.predict(images)) <= set(NAMES)
    np.testing.assert_allclose(learner.predictions(images).probabilities.sum(1), 1)


@representative_methods
def test_learns_the_first_task(name: str) -> None:
    assert accuracy(taught(name, 1, **longer(name)), NAMES[: SIZES[0]]) > 0.8


@representative_methods
def test_every_term_takes_part_from_the_second_task_on_with_finite_losses(name: str) -> None:
    method = quick_method(name)
    for index in range(len(SIZES)):
        history = taught_method(method, index + 1).report.history
        assert all(math.isfinite(value) for losses in history for value in losses.values())
        if index and method.representation.later is not None:
            assert {term for term, part in method.representation.terms.items() if part.weight} == set(history[0])


class Again(NamedTuple):
    """A method taught a second time, from nothing, with other names for the classes."""

    learner: Learner
    changed: list[bool]
    """Whether the state after each task had changed when all were learned."""


@functools.cache
def again(name: str) -> Again:
    learner = toy_learner(name)
    known = []
    for task in toy_tasks(tuple(reversed(NAMES))):
        learner.learn(task)
        known.append((learner.state, state(learner)))
    changed = [not same(dict(state.state_dict()), before) for state, before in known]
    return Again(learner, changed)


@representative_methods
def test_is_deterministic_under_a_seed_whatever_its_classes_are_called(name: str) -> None:
    assert same(state(again(name).learner), state(taught(name)))
    assert again(name).learner.classes == list(reversed(NAMES))
    assert torch.equal(scores(again(name).learner), scores(taught(name)))


@every_method
def test_reads_no_old_image_and_keeps_none_alive(name: str) -> None:
    learned = [taught_method(quick_method(name), index + 1) for index in range(len(SIZES))]
    scores(taught(name))
    images = [images for one in learned for images in one.images]
    assert len(images) == len(SIZES)
    if any(one() is not None for one in images):
        gc.collect()  # needed for cyclic references only; it takes a tenth of a second
    assert not any(one() is not None for one in images)
    assert READ_LATE == []


@representative_methods
def test_what_was_known_before_a_task_is_never_changed(name: str) -> None:
    assert again(name).changed == [False] * len(SIZES)


@every_method
def test_saves_and_loads_equal(name: str, tmp_path: Path) -> None:
    learner = taught(name)
    learner.save(tmp_path / "learner.safetensors")
    loaded = Learner.load(tmp_path / "learner.safetensors")
    assert loaded.classes == learner.classes
    assert same(state(loaded), state(learner))
    assert torch.equal(scores(loaded), scores(learner))


@representative_methods
def test_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    taught(name, tasks=2).save(tmp_path / "learner.safetensors")
    resumed = Learner.load(tmp_path / "learner.safetensors")
    resumed.learn(toy_tasks()[2])
    assert same(state(resumed), state(taught(name)))
    assert torch.equal(scores(resumed), scores(taught(name)))


@representative_methods
def test_a_task_that_fails_leaves_the_learner_unchanged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = taught(name, tasks=1)
    known, before = learner.state, state(learner)

    def fail(*args: object) -> None:
        raise ZeroDivisionError

    # The network has been trained, and the memory written, when the classifier fails.
    monkeypatch.setattr(type(learner.method.classifier), "update", fail)
    with pytest.raises(ZeroDivisionError):
        learner.learn(toy_tasks()[1])
    assert learner.state is known
    assert same(state(learner), before)
    assert not any(module._forward_hooks for module in learner.network.modules())


@representative_methods
def test_a_first_task_of_one_class_and_no_images_to_predict(name: str) -> None:
    trained = quick_method(name).representation
    stages = [when for when in ("first", "later") if getattr(trained, when) is not None]
    learner = toy_learner(name, None, **{f"representation.{when}.epochs": 1 for when in stages})
    data = toy_images()
    few = torch.cat([torch.nonzero(data.targets == target).flatten()[:12] for target in range(len(NAMES))])
    data = LabelledImages(Subset(data.images, few), data.targets[few], data.classes)
    for classes in (("zero",), ("one",), ("two", "three")):
        learner.learn(data.of_classes(classes))
    assert torch.isfinite(scores(learner)).all()
    assert learner.scores(torch.zeros(0, learner.network.extractor.size)).shape == (0, 4)


WITHOUT_BOTTLENECK = [name for name in LEARNING if make_method(name).backbone.features is None]
TAKING_NO_ROOTS = [
    name
    for name in WITHOUT_BOTTLENECK
    if not any(Requirement.NON_NEGATIVE in part.requires for part in make_method(name).parts().values())
    and make_method(name).representation.first is not None  # an untrained bottleneck is useless
]


@pytest.mark.parametrize("name", WITHOUT_BOTTLENECK)
def test_a_datasets_bottleneck_is_not_forced_on_a_method_without_one(name: str) -> None:
    assert dataset_info("digits").settings["backbone.features"] == 16
    assert make_method(name, layers=dataset_layers("digits")).backbone.features is None


@pytest.mark.parametrize("name", thorough(TAKING_NO_ROOTS))
def test_signed_features_serve_every_method_that_takes_no_roots(name: str) -> None:
    bottleneck: dict[str, Any] = {"backbone.features": 24}
    learner = taught(name, 2, **bottleneck)
    assert (learner.features(toy_images().images) < 0).any()
    assert torch.isfinite(scores(learner)).all()


@pytest.mark.parametrize("name", sorted(methods()))
def test_settings_survive_a_round_trip_through_plain_data(name: str) -> None:
    for preset in [None, *methods()[name].presets]:
        method = make_method(name, preset)
        assert plain(Method.of(plain(method))) == plain(method)


@pytest.mark.parametrize("name", sorted(methods()))
def test_says_what_it_is(name: str) -> None:
    info = methods()[name]
    assert info.title
    assert info.family
    assert info.stores
    assert info.paper
