"""Effort instead of hyperparameters: what each word means, and that the best of several is found on held-out images."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits

from adagauss.backbones.registry import BackboneInfo
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import ConfigError
from adagauss.estimator import IncrementalClassifier
from adagauss.estimator.choices import Words
from adagauss.estimator.trials import best_method
from adagauss.learner import Learner
from adagauss.methods import Method, make_method
from adagauss.progress import Reporter

Array = npt.NDArray[Any]
DIGITS = load_digits()
PIXELS: Array = np.rint(DIGITS.images * (255 / 16)).astype(np.uint8)
SETTINGS = {"backbone.options.filters": 20}


def words(effort: str = "good", method: str | None = None, backbone: str | None = None) -> Words:
    return Words(method, None, effort, None, None, backbone)


@pytest.mark.parametrize("installed", [True, False])
def test_each_effort_is_a_method_that_trains_nothing(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackboneInfo, "available", installed)
    for effort, numbers in {"quick": (1,), "good": (1,), "best": (2, 3)}.items():
        found = words(effort).methods(PIXELS)
        assert len(found) in numbers
        assert not any(method.trains for method in found.values())
    first = next(iter(words("best").methods(PIXELS).values()))
    assert first == next(iter(words("good").methods(PIXELS).values())), "the usual method is among those tried"


def test_effort_speaks_for_itself() -> None:
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        words("quik").methods(PIXELS)
    for wrong in (words("best", method="adagauss"), words("quick", backbone="convnet")):
        with pytest.raises(ConfigError, match="chooses the method itself"):
            wrong.methods(PIXELS)


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
    assert all(text.startswith("sound is kept; of 6") for text in reporter.said)


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
