"""What every registered method must do; a new method is tested by being there."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from adagauss.config import plain
from adagauss.data.images import LabelledImages
from adagauss.errors import DataError
from adagauss.learner import Learner
from adagauss.methods import Method, make_method, methods
from adagauss.settings import flatten
from tests.contracts.toy import NAMES, SIZES, scores, taught, toy_images, toy_learner, toy_tasks

LEARNING = sorted(name for name, info in methods().items() if info.family != "upper bound")
"""Methods that learn from the current task alone."""


@pytest.fixture(scope="module", params=LEARNING)
def learned(request: pytest.FixtureRequest) -> tuple[str, Learner]:
    name: str = request.param
    return name, taught(name)


def test_scores_every_class_of_uneven_and_single_class_tasks(learned: tuple[str, Learner]) -> None:
    _, learner = learned
    assert [len(task) for task in learner.tasks] == list(SIZES)
    values = scores(learner)
    assert values.shape == (len(toy_images(test=True)), len(NAMES))
    assert torch.isfinite(values).all()


def test_predicts_string_labels_with_probabilities_that_sum_to_one(learned: tuple[str, Learner]) -> None:
    _, learner = learned
    images = toy_images(test=True).images
    assert set(learner.predict(images)) <= set(NAMES)
    torch.testing.assert_close(learner.probabilities(images).sum(1), torch.ones(len(images), dtype=torch.float64))


def test_learns_the_first_task(learned: tuple[str, Learner]) -> None:
    name, _ = learned
    learner = toy_learner(name, **_longer(name))
    learner.learn(toy_tasks()[0])
    test = toy_images(test=True).of_classes(NAMES[: SIZES[0]])
    hits = [guess == label for guess, label in zip(learner.predict(test.images), test.labels, strict=True)]
    assert sum(hits) / len(hits) > 0.8


def test_is_deterministic_under_a_seed(learned: tuple[str, Learner]) -> None:
    name, learner = learned
    assert torch.equal(scores(taught(name)), scores(learner))


def test_saves_and_loads_equal(learned: tuple[str, Learner], tmp_path: Path) -> None:
    _, learner = learned
    learner.save(tmp_path / "learner.safetensors")
    loaded = Learner.load(tmp_path / "learner.safetensors")
    assert loaded.classes == learner.classes
    assert torch.equal(scores(loaded), scores(learner))


def test_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(learned: tuple[str, Learner], tmp_path: Path) -> None:
    name, learner = learned
    taught(name, tasks=2).save(tmp_path / "learner.safetensors")
    resumed = Learner.load(tmp_path / "learner.safetensors")
    resumed.learn(toy_tasks()[2])
    assert torch.equal(scores(resumed), scores(learner))


def test_names_of_classes_do_not_matter(learned: tuple[str, Learner]) -> None:
    name, learner = learned
    renamed = taught(name, labels=tuple(reversed(NAMES)))
    assert torch.equal(scores(renamed), scores(learner))


class SealableImages:
    """Images that raise when they are read after their task is over."""

    def __init__(self, data: LabelledImages) -> None:
        self.pixels = data.images.batch(torch.arange(len(data)))
        self.shape: tuple[int, int, int] = data.images.shape
        self.sealed = False

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Tensor) -> Tensor:
        assert not self.sealed, "an image of an old task was read"
        return self.pixels[indices]


@pytest.mark.parametrize("name", LEARNING)
def test_reads_no_old_image_and_keeps_none_alive(name: str) -> None:
    learner = toy_learner(name)
    references = []
    for task in toy_tasks():
        images = SealableImages(task)
        learner.learn(LabelledImages(images, task.targets, task.classes))
        images.sealed = True
        references.append(weakref.ref(images))
        del images
        scores(learner)
    gc.collect()
    assert [reference() for reference in references] == [None] * len(SIZES)


@pytest.mark.parametrize("name", LEARNING)
def test_refuses_a_known_class_and_stays_as_it_was(name: str) -> None:
    learner = taught(name, tasks=1)
    before = scores(learner)
    with pytest.raises(DataError, match="'one' was learned in an earlier task"):
        learner.learn(toy_images().of_classes(["one", "five"]))
    assert torch.equal(scores(learner), before)


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


def _longer(name: str) -> dict[str, int]:
    known = flatten(plain(make_method(name)))
    return {key: 12 for key in ("representation.first.epochs", "classifier.recipe.epochs") if key in known}
