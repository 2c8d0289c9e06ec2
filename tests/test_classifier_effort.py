"""Effort instead of hyperparameters: what each word means, and that the best of several is found on held-out images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits

from adagauss.backbones.registry import BackboneInfo
from adagauss.classifier import IncrementalClassifier, best_method
from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import AdagaussError, ConfigError
from adagauss.methods import Method, make_method
from adagauss.utils.progress import Reporter

Array = npt.NDArray[Any]
DIGITS = load_digits()
PIXELS: Array = np.rint(DIGITS.images * (255 / 16)).astype(np.uint8)
SETTINGS = {"backbone.options.filters": 20}


def methods(effort: str = "good", **given: Any) -> list[Method]:
    return list(IncrementalClassifier(effort=effort, **given)._methods(photographs=False).values())


@pytest.mark.parametrize("installed", [True, False])
def test_no_effort_trains_and_best_also_tries_a_larger_setting(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackboneInfo, "available", installed)
    for effort, number in {"quick": 1, "good": 1, "best": 2}.items():
        assert [method.trains for method in methods(effort)] == [False] * number
    assert methods("best")[0] == methods("good")[0], "the default method is one of those compared"


def test_effort_chooses_the_method_itself() -> None:
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        methods("quik")
    for effort, given in (("best", {"method": "adagauss"}), ("quick", {"backbone": "convnet"})):
        with pytest.raises(ConfigError, match="chooses the method itself"):
            methods(effort, **given)


def test_quick_learns_without_a_pretrained_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackboneInfo, "available", False)
    classifier = IncrementalClassifier(effort="quick").fit(PIXELS[:300], DIGITS.target[:300])
    assert classifier.learner_.network.extractor.size == 1600
    assert classifier.score(PIXELS[300:600], DIGITS.target[300:600]) > 0.7


class Telling(Reporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


def digits(number: int) -> LabelledImages:
    return LabelledImages.from_labels(ArrayImages(PIXELS[:number]), DIGITS.target[:number].tolist())


def learner_of(method: Method) -> Learner:
    return Learner(method, (1, 8, 8), (0.3,), (0.4,))


def test_the_method_that_recognises_most_held_out_images_is_kept() -> None:
    sound = make_method("exact", settings=SETTINGS)
    blind = make_method("exact", settings={**SETTINGS, "classifier.strengths": (1e12,), "backbone.options.filters": 1})
    reporter = Telling()
    for candidates in ({"sound": sound, "blind": blind}, {"blind": blind, "sound": sound}):
        assert best_method(candidates, digits(300), learner_of, reporter) == sound
    assert all(text.startswith("sound is used; accuracy on 6") for text in reporter.said)


def small(method: str, epochs: int) -> Method:
    shape = {"backbone.name": "convnet", "backbone.features": 16, "augmentation.policy": "none"}
    return make_method(method, settings={**shape, "augmentation.flip": False}, epochs=epochs)


def test_a_network_that_is_trained_is_kept_if_it_is_better() -> None:
    blind = make_method("exact", settings={**SETTINGS, "classifier.strengths": (1e12,), "backbone.options.filters": 1})
    trained = small("adagauss+", epochs=10)
    assert best_method({"blind": blind, "trained": trained}, digits(200), learner_of, Reporter()) == trained


def test_what_a_network_forgets_counts_against_it() -> None:
    sound, forgetful = make_method("exact", settings=SETTINGS), small("finetune", epochs=5)
    learners: list[Learner] = []

    def noted(method: Method) -> Learner:
        learners.append(learner_of(method))
        return learners[-1]

    reporter = Telling()
    assert best_method({"forgetful": forgetful, "sound": sound}, digits(200), noted, reporter) == sound
    assert [learner.tasks for learner in learners] == [((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))] * 2


def test_nothing_is_tried_after_a_method_that_recognises_all() -> None:
    perfect, other = make_method("exact", settings=SETTINGS), make_method("exact")
    two = digits(300).of_classes((0, 1))
    learners: list[Method] = []

    def noted(method: Method) -> Learner:
        learners.append(method)
        return learner_of(method)

    assert best_method({"perfect": perfect, "other": other}, two, noted, Reporter()) == perfect
    assert learners == [perfect]


def test_a_method_that_cannot_learn_such_images_is_left_out() -> None:
    sound = make_method("exact", settings=SETTINGS)
    impossible = make_method("exact", settings={**SETTINGS, "backbone.options.patch_sizes": (30,)})
    reporter = Telling()
    assert best_method({"sound": sound, "impossible": impossible}, digits(200), learner_of, reporter) == sound
    assert any(text.startswith("impossible cannot learn these images") for text in reporter.said)
    with pytest.raises(AdagaussError):
        best_method({"impossible": impossible, "sound": sound}, digits(200), learner_of, Reporter())


@pytest.mark.parametrize("number", [12, 1])
def test_with_too_few_images_the_first_method_is_taken_untried(number: int) -> None:
    def never(method: Method) -> Learner:
        raise AssertionError("nothing is to be tried")

    one, other = make_method("exact"), make_method("exact", settings=SETTINGS)
    assert best_method({"one": one, "other": other}, digits(number), never, Reporter()) == one
    assert best_method({"one": one}, digits(300), never, Reporter()) == one


def test_best_is_one_of_those_tried_and_learns_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackboneInfo, "available", False)
    torch.manual_seed(0)
    classifier = IncrementalClassifier(
        effort="best", settings={"backbone.options.patches": 2000, "backbone.options.filters": 40}
    )
    classifier.fit(PIXELS[:200], DIGITS.target[:200])
    assert classifier.learner_.network.extractor.size == 320
    assert sum(found.images for found in classifier.summary()) == 200
    assert len(classifier.learner_.tasks) == 1
