"""Exact methods: however classes were learned, forgotten or merged, the result is that of learning what is left."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages, Subset
from adagauss.errors import DataError
from tests.contracts.test_order import EXACT, learned, solution
from tests.contracts.toy import NAMES, taught, toy_images, toy_learner, toy_tasks

EXACT_OR_ANALYTIC = [*EXACT, "acil"]


def half(which: int, classes: Sequence[str] = NAMES) -> LabelledImages:
    """Every other image of some classes."""
    data = toy_images().of_classes(classes)
    rows = torch.arange(which, len(data), 2)
    return LabelledImages(Subset(data.images, rows), data.targets[rows], data.classes)


def started(name: str, first: LabelledImages, **settings: object) -> Learner:
    """A learner of one strength and features of no task, or of a trained network, after its first images."""
    if name in EXACT:
        learner = learned(name, [], **settings)
    else:
        learner = toy_learner(name)
        learner.learn(toy_images().of_classes(NAMES[:2]))
        learner = learner.empty_like()
    learner.learn(first)
    return learner


def assert_same(one: Learner, other: Learner, classes: Sequence[str] = NAMES) -> None:
    """Equal up to the temperature, which comes from what images said when they arrived."""
    mine, theirs = solution(one, classes), solution(other, classes)
    ratio = (mine * theirs).sum() / theirs.square().sum()
    assert float((mine - ratio * theirs).abs().max()) < 1e-3 * float(mine.abs().max())


@pytest.mark.parametrize("name", EXACT_OR_ANALYTIC)
def test_pieces_of_known_classes_equal_one_learner_that_was_taught_everything(name: str) -> None:
    pieces = started(name, half(0, NAMES[:4]))
    pieces.learn(half(1))
    pieces.learn(half(0, NAMES[4:]))
    assert_same(pieces, started(name, toy_images()))
    assert pieces.classes == list(NAMES)


@pytest.mark.parametrize("name", EXACT)
def test_merged_learners_equal_one_that_was_taught_everything(name: str) -> None:
    everything = started(name, toy_images())
    one, other = started(name, half(0, NAMES[:4])), learned(name, [])
    other.learn(half(0, ("five", "four")))
    other.learn(half(1))
    one.merge(other)
    assert_same(one, everything)
    assert one.classes == ["zero", "one", "two", "three", "five", "four"]
    assert other.classes == ["five", "four", "zero", "one", "two", "three"]


@pytest.mark.parametrize("name", EXACT)
def test_forgetting_with_all_images_equals_never_having_seen_them(name: str) -> None:
    learner, never = started(name, toy_images()), started(name, toy_images().of_classes(NAMES[1:5]))
    learner.forget(["five", "zero"], toy_images().of_classes(["zero", "five"]))
    assert_same(learner, never, NAMES[1:5])
    learner.learn(toy_images().of_classes(["zero", "five"]))
    assert_same(learner, started(name, toy_images()))


WAYS: dict[str, dict[str, object]] = {
    "": {},
    "mirror": {"backbone.mirror": True},
}


@pytest.mark.parametrize(
    ("name", "way", "times"),
    [*((name, "", 1) for name in EXACT), ("analytic-patches", "mirror", 1), ("analytic-patches", "", 3)],
)
def test_after_forgetting_with_images_the_sums_are_those_of_the_rest(
    name: str, way: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    learner, never = (started(name, toy_images().of_classes(names), **WAYS[way]) for names in (NAMES, NAMES[1:]))
    for _ in range(times - 1):
        learner.learn(toy_images().of_classes(["zero"]))
    caplog.clear()
    rows = [
        row
        for row, label in enumerate(toy_images().labels)
        for _ in range({"zero": times, "one": 1}.get(str(label), 0))
    ]
    taken = LabelledImages(
        Subset(toy_images().images, torch.tensor(rows)), toy_images().targets[rows], toy_images().classes
    )
    learner.forget(["zero", "one"], taken.of_classes(["zero", "one"]))  # images go as often as they are given
    never.forget(["one"], toy_images().of_classes(["one"]))
    assert "stays in the sums" not in caplog.text
    mine, theirs = (one.state.states["classifier"].get_submodule("sums").state_dict() for one in (learner, never))
    for key, tensor in theirs.items():
        scale = float(tensor.double().abs().max())
        torch.testing.assert_close(mine[key], tensor, atol=1e-5 * scale, rtol=1e-5)


@pytest.mark.parametrize("name", EXACT_OR_ANALYTIC)
def test_joined_classes_equal_one_class_from_the_start(name: str) -> None:
    learner = started(name, toy_images())
    learner.merge_classes("three", ["one", "five"])
    data = toy_images()
    odd = [label if label in ("zero", "two", "four") else "three" for label in data.labels]
    assert_same(learner, started(name, LabelledImages.from_labels(data.images, odd)), ("zero", "two", "four", "three"))


def test_an_image_much_like_another_is_not_taken_for_it(caplog: pytest.LogCaptureFixture) -> None:
    data = toy_images().of_classes(["one"])
    pixels = data.images.batch(torch.tensor([0, 0]))
    pixels[1, 0, 3, 3] ^= 8
    twins = LabelledImages.from_labels(ArrayImages(pixels), ["one", "one"])
    learner = started("analytic-patches", toy_images().of_classes(["zero"]))
    learner.learn(twins)
    caplog.clear()
    learner.forget(["one"], LabelledImages(Subset(twins.images, torch.tensor([0])), twins.targets[:1], twins.classes))
    assert "learned from 2 images, and 1 are given" in caplog.text


def test_more_images_than_came_cannot_be_taken_away() -> None:
    learner = started("analytic-patches", half(0))
    before = learner.state
    with pytest.raises(DataError, match="'one' was learned from 15 images, but 30"):
        learner.forget(["one"], toy_images().of_classes(["one"]))
    assert learner.state is before


def test_learners_with_different_dictionaries_are_refused_with_the_way_to_mergeable_ones() -> None:
    one, other = (
        toy_learner("analytic-patches", **{"backbone.options.dictionary_from": "first_task"}) for _ in range(2)
    )
    one.learn(toy_tasks()[0])
    other.learn(toy_tasks()[2])
    with pytest.raises(DataError, match=r"features differ.*empty_like\(\)"):
        one.merge(other)
    assert one.classes == ["zero", "one"]


def test_learners_that_prepare_images_differently_are_refused() -> None:
    one = taught("analytic-pretrained", 1)
    other = Learner(one.method, one.shape, (0.1,), one.std)
    other.learn(toy_tasks()[1])
    with pytest.raises(DataError, match="features differ"):
        one.merge(other)


def test_learners_with_different_random_features_are_refused() -> None:
    one = taught("ranpac", 1)
    other = copy.copy(one)
    other.runtime = copy.copy(one.runtime)
    other.runtime.seed = 1
    other = other.empty_like()
    other.learn(toy_tasks()[1])
    with pytest.raises(DataError, match="same seed"):
        one.merge(other)


@pytest.mark.parametrize("name", ["analytic-patches", "frozen"])
def test_what_two_learners_have_from_a_common_one_is_not_counted_twice(name: str) -> None:
    common = taught(name, 1)
    one, other = copy.copy(common), copy.copy(common)
    one.learn(toy_tasks()[1])
    other.learn(toy_tasks()[2])
    with pytest.raises(DataError, match="'zero', which would be counted twice"):
        one.merge(other)


@pytest.mark.parametrize("name", ["analytic-patches", "frozen"])
def test_a_learner_without_classes_can_be_merged_either_way(name: str) -> None:
    learner = taught(name, 2)
    empty = learner.empty_like()
    assert empty.classes == []
    with pytest.raises(DataError, match="nothing has been learned yet"):
        empty.predict(toy_images().images)
    before = solution(learner, NAMES[:3])
    learner.merge(empty)
    empty.merge(learner)
    assert torch.equal(solution(learner, NAMES[:3]), before)
    assert torch.equal(solution(empty, NAMES[:3]), before)
