"""Upkeep of classes: what every registered method can do with classes it knows, or refuses with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.core.state import Scorer
from adagauss.errors import DataError, UnsupportedError
from adagauss.methods import methods
from adagauss.parts.classifiers import NearestMean
from tests.contracts.toy import (
    IMAGES,
    NAMES,
    accuracy,
    longer,
    same,
    scores,
    state,
    taught,
    thorough,
    toy_images,
    toy_tasks,
)

EVERY = sorted(methods())
TRAINED_OUTPUTS = {"efc", "efc++", "ewc", "finetune", "il2a", "joint", "lwf", "pass", "ssre"}
"""Methods that predict by one trained output for each class."""
MERGEABLE = {"analytic-patches", "analytic", "analytic-pretrained", "fecam", "frozen", "ranpac"}

representative_methods = pytest.mark.parametrize("name", thorough(EVERY))


def learn_known(learner: Learner) -> None:
    learner.learn(toy_images().of_classes(["one"]))


def learn_both(learner: Learner) -> None:
    learner.learn(toy_images().of_classes(["five", "one"]))


def forget(learner: Learner) -> None:
    learner.forget(["one"])


def forget_with_images(learner: Learner) -> None:
    learner.forget(["one"], toy_images().of_classes(["one"]))


def rename(learner: Learner) -> None:
    learner.rename("one", "uno")


def merge_classes(learner: Learner) -> None:
    learner.merge_classes("two", ["zero"])


def merge(learner: Learner) -> None:
    other = learner.empty_like()
    other.learn(toy_tasks()[2])
    learner.merge(other)


class Change:
    """An action, the classes after it on a learner of two tasks, and who cannot."""

    def __init__(self, act: Callable[[Learner], None], classes: list[str], refused: set[str]) -> None:
        self.act, self.classes, self.refused = act, classes, refused


CHANGES = {
    "known classes alone": Change(learn_known, ["zero", "one", "two"], TRAINED_OUTPUTS),
    "known and new": Change(learn_both, ["zero", "one", "two", "five"], TRAINED_OUTPUTS),
    "forget": Change(forget, ["zero", "two"], set()),
    "forget with images": Change(forget_with_images, ["zero", "two"], {"acil", "dsal"}),
    "rename": Change(rename, ["zero", "uno", "two"], set()),
    "merge classes": Change(merge_classes, ["one", "two"], TRAINED_OUTPUTS | {"fetril"}),
    "merge": Change(merge, list(NAMES), set(EVERY) - MERGEABLE),
}


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name in EVERY for change in CHANGES if change == "forget" or name in thorough(EVERY)],
)
def test_a_change_works_and_survives_a_file_or_is_refused_with_a_reason(name: str, change: str, tmp_path: Path) -> None:
    wanted, learner = CHANGES[change], taught(name, 2)
    known, before = learner.state, state(learner)
    if name in wanted.refused:
        with pytest.raises(UnsupportedError, match=r"; |\. ") as refusal:
            wanted.act(learner)
        assert any(word in str(refusal.value) for word in ("teach", "forget", "use "))
        assert learner.state is known
    else:
        wanted.act(learner)
        assert learner.classes == wanted.classes
        learner.state.check()
        values = scores(learner)
        assert values.shape[1] == len(wanted.classes)
        assert torch.isfinite(values).all()
        learner.save(tmp_path / "learner.safetensors")
        loaded = Learner.load(tmp_path / "learner.safetensors")
        assert loaded.classes == wanted.classes
        assert same(state(loaded), state(learner))
        assert torch.equal(scores(loaded), values)
    assert same(dict(known.state_dict()), before)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (name, change)
        for change in ("forget", "merge classes", "merge")
        for name in thorough(EVERY)
        if name not in CHANGES[change].refused
    ],
)
def test_a_failed_change_leaves_the_learner_unchanged(name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, learner = CHANGES[change], taught(name, 2)
    known, before = learner.state, state(learner)

    def fail(*args: object) -> None:
        raise ZeroDivisionError

    # The classifier is last: network and memory have been changed when it fails.
    for action in ("remap_classes", "merged"):
        monkeypatch.setattr(type(learner.method.classifier), action, fail)
    with pytest.raises(ZeroDivisionError):
        wanted.act(learner)
    assert learner.state is known
    assert same(state(learner), before)


@pytest.mark.parametrize("name", [name for name in thorough(EVERY) if name not in TRAINED_OUTPUTS])
def test_more_images_of_known_classes_are_learned_without_harm(name: str) -> None:
    learner = taught(name, 1, **longer(name))
    learner.learn(toy_tasks()[0])
    assert learner.classes == ["zero", "one"]
    assert accuracy(learner, NAMES[:2]) > 0.8
    if len(learner.memory):
        views = 2 if getattr(learner.method.memory, "flips", False) else 1
        assert learner.memory.counts.tolist() == [2 * views * IMAGES] * 2


def test_every_output_of_a_class_that_came_twice_goes_with_it() -> None:
    learner = taught("sdc", 2)
    learner.learn(toy_images().of_classes(["one", "three"]))
    assert learner.network.head.sizes == [(2, 0), (1, 0), (2, 0)]
    weight, _ = learner.network.head.class_parameters()
    learner.forget(["one", "two"])
    assert learner.network.head.sizes == [(1, 0), (1, 0)]
    assert torch.equal(learner.network.head.class_parameters()[0], weight[[0, 4]])


@representative_methods
def test_a_forgotten_class_can_be_taught_again(name: str) -> None:
    learner = taught(name)
    learner.forget(["one", "two"])
    assert learner.tasks == (("zero",), (), ("three", "four", "five"))
    assert not {"one", "two"} & set(learner.predict(toy_images(test=True).images))
    learner.learn(toy_images().of_classes(["one"]))
    assert learner.classes == ["zero", "three", "four", "five", "one"]
    assert torch.isfinite(scores(learner)).all()


@pytest.mark.parametrize("name", [name for name in thorough(EVERY) if name not in CHANGES["merge classes"].refused])
def test_merged_classes_are_predicted_by_one_name(name: str) -> None:
    learner = taught(name, 1, **longer(name))
    learner.learn(toy_tasks()[1])
    before = share_of_even(learner)
    learner.merge_classes("even", ["zero", "two"])
    assert learner.classes == ["even", "one"]
    assert share_of_even(learner) > before - 0.15


def share_of_even(learner: Learner) -> float:
    """Share of test images whose parity is predicted right."""
    test = toy_images(test=True).of_classes(NAMES[:3])
    guesses = learner.predict(test.images)
    hits = [(guess == "one") == (label == "one") for guess, label in zip(guesses, test.labels, strict=True)]
    return sum(hits) / len(hits)


def test_impossible_changes_are_refused_with_the_reason() -> None:
    learner = taught("frozen", 2)
    before = learner.state
    refusals: list[tuple[Callable[[], None], str]] = [
        (lambda: learner.forget(["seven"]), "'seven' is not among the 3 known classes"),
        (lambda: learner.forget(["zero", "one", "two"]), "keep one"),
        (lambda: learner.forget(["one"], toy_tasks()[0]), "'zero', which is not to be forgotten"),
        (lambda: learner.rename("one", "two"), "merge both"),
        (lambda: learner.rename("seven", "two"), "'seven' is not among"),
        (lambda: learner.merge_classes("one", ["one"]), "at least two"),
        (lambda: learner.merge_classes("one", ["seven"]), "'seven' is not among"),
        (lambda: learner.merge(taught("fecam", 2)), r"differ in .*classifier\.kind \(nearest_mean, \w+\)"),
        (lambda: learner.merge(taught("frozen", 3)), "counted twice"),
    ]
    for act, message in refusals:
        with pytest.raises(DataError, match=message):
            act()
        assert learner.state is before
    with pytest.raises(DataError, match="no features yet"):
        Learner(learner.method, learner.shape, learner.mean, learner.std).empty_like()


def test_a_change_during_another_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = taught("frozen", 2)
    remap = NearestMean.remap_classes

    def rename_meanwhile(*arguments: Any) -> Scorer:
        learner.rename("zero", "nought")
        return remap(*arguments)

    monkeypatch.setattr(NearestMean, "remap_classes", rename_meanwhile)
    with pytest.raises(DataError, match="one change at a time"):
        learner.forget(["one"])
    assert learner.classes == ["nought", "one", "two"]
