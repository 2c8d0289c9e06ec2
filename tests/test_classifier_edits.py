"""The estimator's thin wrappers: upkeep of classes, unknown images, sets and summaries."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from adagauss.classifier import IncrementalClassifier
from adagauss.errors import ConfigError, DataError

Array = npt.NDArray[Any]
DIGITS = load_digits()
PIXELS: Array = np.rint(DIGITS.images * (255 / 16)).astype(np.uint8)


def task(*digits: int) -> tuple[Array, Array]:
    chosen = np.isin(DIGITS.target, digits)
    return PIXELS[chosen], DIGITS.target[chosen]


@pytest.fixture(scope="module")
def original() -> IncrementalClassifier:
    """Six digits in two tasks."""
    classifier = IncrementalClassifier("exact", settings={"backbone.options.filters": 50})
    return classifier.partial_fit(*task(3, 4, 5)).partial_fit(*task(0, 1, 2))


@pytest.fixture
def taught(original: IncrementalClassifier) -> IncrementalClassifier:
    copy: IncrementalClassifier = pickle.loads(pickle.dumps(original))
    return copy


def test_more_images_of_a_known_class_are_learned(original: IncrementalClassifier) -> None:
    images, labels = task(0, 1)
    half = IncrementalClassifier("exact", settings={"backbone.options.filters": 50})
    half.partial_fit(images[::2], labels[::2]).partial_fit(images[1::2], labels[1::2])
    assert [found.images for found in half.summary()] == np.bincount(labels).tolist()


def test_forget(taught: IncrementalClassifier) -> None:
    assert taught.forget(1, 4) is taught
    assert taught.classes_.tolist() == [0, 2, 3, 5]
    assert set(taught.predict(PIXELS).tolist()) <= {0, 2, 3, 5}
    with pytest.raises(DataError):
        taught.forget(1)


def test_forget_with_images_in_every_form(original: IncrementalClassifier, tmp_path: Path) -> None:
    (zeros, _), (ones, _) = task(0), task(1)
    for digit, images in enumerate((zeros, ones)):
        (tmp_path / str(digit)).mkdir()
        for number, pixels in enumerate(images):
            Image.fromarray(pixels).save(tmp_path / str(digit) / f"{number:04}.png")
    forms: list[tuple[tuple[int, ...], Any]] = [
        ((0, 1), {0: zeros, 1: ones}),
        ((0, 1), tmp_path),
        ((0,), zeros),
        ((0,), {0: zeros}),
        ((0,), tmp_path),
        ((0,), tmp_path / "0"),
    ]
    answers: dict[tuple[int, ...], Array] = {}
    for classes, images in forms:
        classifier: IncrementalClassifier = pickle.loads(pickle.dumps(original))
        probabilities = classifier.forget(*classes, images=images).predict_proba(PIXELS[:50])
        np.testing.assert_allclose(probabilities, answers.setdefault(classes, probabilities), atol=1e-5)
    blind: IncrementalClassifier = pickle.loads(pickle.dumps(original))
    assert not np.allclose(blind.forget(0).predict_proba(PIXELS[:50]), answers[(0,)], atol=1e-5), "images matter"
    for too_few in (zeros, {0: zeros}, tmp_path / "0"):
        with pytest.raises(DataError, match="classes"):
            blind.forget(1, 2, images=too_few)


def test_other_images_than_those_learned_are_not_taken_out(
    taught: IncrementalClassifier, caplog: pytest.LogCaptureFixture
) -> None:
    (zeros, _), (ones, _) = task(0), task(1)
    before = taught.predict_proba(PIXELS[:50])
    one_other = np.concatenate([zeros[:-1], ones[:1]])
    for wrong in (one_other, ones[: len(zeros)]):
        with pytest.raises(DataError, match=r"^these are not the images that class 0 was learned from"):
            taught.forget(0, images=wrong)
    strange = np.full_like(zeros[:5], 255)
    strange[:, ::2] = 0
    with pytest.raises(DataError, match=r"^these are not the images that class 0 was learned from: give"):
        taught.forget(0, images=strange)
    np.testing.assert_array_equal(taught.predict_proba(PIXELS[:50]), before)
    caplog.clear()
    taught.forget(0, images=zeros[:100])
    assert f"learned from {len(zeros)} images, and 100 are given" in caplog.text


def test_other_images_are_not_taken_out_in_the_place_of_some(tmp_path: Path) -> None:
    """With fewer images than features others show themselves, though nothing is kept of single images."""
    images, labels = task(0, 1, 2)
    few = IncrementalClassifier("exact", settings={"backbone.options.filters": 50}).fit(images[:90], labels[:90])
    (zeros,) = np.nonzero(labels[:90] == 0)
    (others,) = np.nonzero(labels[90:] == 0)
    before = few.predict_proba(images)
    for wrong in (images[90:][others[:1]], images[90:][others[: len(zeros) - 1]], images[90:][labels[90:] == 1][:3]):
        with pytest.raises(DataError, match=r"not the images that class 0 was learned from"):
            few.forget(0, images=wrong)
    np.testing.assert_array_equal(few.predict_proba(images), before)
    few.forget(0, images=images[zeros[:-1]]).save(tmp_path / "few.safetensors")
    assert IncrementalClassifier.load(tmp_path / "few.safetensors").classes_.tolist() == [1, 2]


def test_images_that_are_taught_twice_give_a_warning(
    taught: IncrementalClassifier, caplog: pytest.LogCaptureFixture
) -> None:
    images, labels = task(0, 1)
    (ones,) = np.nonzero(labels == 1)
    images[ones] = images[ones][::-1, ::-1]  # turned over: as many images of that class, but others
    taught.partial_fit(images, labels)
    assert [record.args for record in caplog.records] == [("0",)]
    assert "counts again" in caplog.text


def test_rename_and_merge_classes(taught: IncrementalClassifier) -> None:
    images, labels = task(0, 1)
    before = taught.predict(images)
    taught.rename(0, 10)
    np.testing.assert_array_equal(taught.predict(images), np.where(before == 0, 10, before))
    with pytest.raises(DataError, match="one kind"):
        taught.rename(10, "ten")
    taught.merge_classes(10, 1)
    assert taught.classes_.tolist() == [2, 3, 4, 5, 10]
    assert taught.score(images, np.full_like(labels, 10)) > 0.9
    with pytest.raises(DataError, match="one kind"):
        taught.merge_classes("even", 2, 4)


def test_two_classifiers_become_one(original: IncrementalClassifier) -> None:
    first = IncrementalClassifier("exact", settings={"backbone.options.filters": 50}).partial_fit(*task(3, 4, 5))
    second = first.empty_like()
    with pytest.raises(NotFittedError):
        second.predict(PIXELS)
    second.partial_fit(*task(0, 1, 2))
    first.merge(second)
    np.testing.assert_array_equal(first.classes_, original.classes_)
    np.testing.assert_array_equal(first.predict(PIXELS), original.predict(PIXELS))
    with pytest.raises(DataError, match="not str"):
        first.merge("second")  # type: ignore[arg-type]


def test_two_classes_are_not_all_equally_probable() -> None:
    images, labels = task(0, 1)
    classifier = IncrementalClassifier("exact", settings={"backbone.options.filters": 50}).fit(images, labels)
    assert len(np.unique(classifier.predict_proba(images)[:, 0].round(6))) > 10


def test_unknown_images_are_called_none(original: IncrementalClassifier) -> None:
    known, _ = task(0, 1, 2, 3, 4, 5)
    strange, _ = task(6, 7, 8, 9)
    answers = original.predict(known, unknown=True)
    assert answers.dtype == object
    sure = np.array([answer is not None for answer in answers])
    np.testing.assert_array_equal(answers[sure].astype(int), original.predict(known)[sure])
    rejected = np.mean([answer is None for answer in original.predict(strange, unknown=0.05)])
    assert np.mean(~sure) < 0.15 < 0.3 < rejected
    assert sum(answer is None for answer in original.predict(strange, unknown=0.2)) > rejected * len(strange)
    assert (original.predict(known, unknown=False) == original.predict(known)).all()
    for prediction, answer in zip(
        original.classify(strange, unknown=True), original.predict(strange, True), strict=True
    ):
        assert prediction.label == answer
        assert prediction.top[0][1] == prediction.probability
    ood_score = original.ood_score(np.concatenate([known, strange]))
    assert ood_score[len(known) :].mean() > ood_score[: len(known)].mean() + 0.2
    for wrong in (0, 1, 1.5, "yes"):
        with pytest.raises(ConfigError, match="unknown must be"):
            original.predict(known, unknown=wrong)  # type: ignore[arg-type]


def test_sets_hold_the_right_class(original: IncrementalClassifier) -> None:
    images, labels = task(0, 1, 2, 3, 4, 5)
    for coverage in (0.5, 0.99):
        sets = original.prediction_sets(images, coverage)
        assert np.mean([label in found for label, found in zip(labels.tolist(), sets, strict=True)]) >= coverage
        assert [found[0] for found in sets] == original.predict(images).tolist()
    with pytest.raises(ConfigError, match="coverage"):
        original.prediction_sets(images, 2)


@pytest.mark.parametrize(
    ("method", "classes", "number", "words"),
    [
        ("analytic-patches", 1, 9, "no held-out images .* teach at least two classes, each with at least 3"),
        ("analytic-patches", 3, 1, "no held-out images"),
        ("finetune", 3, 3, r"at the rate 0\.05 needs 20 held-out images of known classes and has 9"),
    ],
)
def test_unknown_classes_without_held_out_images_are_a_warning(
    method: str, classes: int, number: int, words: str
) -> None:
    rows = [row for label in range(classes) for row in np.flatnonzero(DIGITS.target == label)[:number]]
    images, labels = PIXELS[rows], DIGITS.target[rows]
    settings = {"backbone.options.filters": 20} if method != "finetune" else {"backbone.name": "convnet"}
    few = IncrementalClassifier(method, settings=settings, epochs=1 if method == "finetune" else None)
    few.fit(images, labels)
    for predict in (few.predict, few.classify):
        with pytest.warns(UserWarning, match=words):
            predict(images, unknown=True)


def test_summary_follows_the_classes(original: IncrementalClassifier) -> None:
    summary = original.summary()
    assert [found.label for found in summary] == original.classes_.tolist()
    assert [found.images for found in summary] == np.bincount(DIGITS.target)[:6].tolist()
    assert all(found.expected_accuracy is not None and found.expected_accuracy > 0.8 for found in summary)


def test_upkeep_needs_something_learned() -> None:
    empty = IncrementalClassifier()
    for act in (lambda: empty.forget(1), lambda: empty.rename(1, 2), empty.summary, empty.empty_like):
        with pytest.raises(NotFittedError, match="partial_fit"):
            act()
