"""The resize mode of a classifier: chosen on the images of the first task, stored, exported and kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adagauss import IncrementalClassifier
from adagauss.core.learn import Learner
from adagauss.deploy.onnx import DeployedPredictor
from adagauss.errors import ConfigError, DataError

SETTINGS = {"backbone.options.filters": 20, "backbone.options.patches": 500}
RNG = np.random.default_rng(0)


def striped(vertical: bool, centre: bool) -> Image.Image:
    """A wide noisy picture with stripes in the centre, or at its ends."""
    pixels = RNG.integers(100, 140, (32, 96, 3), dtype=np.uint8)
    stripes = np.zeros((32, 20, 3), dtype=np.uint8)
    if vertical:
        stripes[:, ::4] = 255
    else:
        stripes[::4] = 255
    if centre:
        pixels[:, 38:58] = stripes
    else:
        pixels[:, :20] = pixels[:, -20:] = stripes
    return Image.fromarray(pixels)


def pictures(centre: bool, number: int = 16) -> tuple[list[Image.Image], list[str]]:
    images = [striped(vertical, centre) for vertical in (True, False) for _ in range(number)]
    return images, ["vertical"] * number + ["horizontal"] * number


def classifier(mode: str = "auto") -> IncrementalClassifier:
    return IncrementalClassifier("analytic-patches", settings=SETTINGS, image_size=32, resize_mode=mode)


@pytest.fixture(scope="module")
def wide() -> IncrementalClassifier:
    """It has learned pictures whose classes are visible at the ends only."""
    return classifier().fit(*pictures(centre=False))


def test_pictures_whose_ends_matter_are_stretched(wide: IncrementalClassifier) -> None:
    assert wide.learner_.resize_mode == "stretch"
    assert wide.score(*pictures(centre=False, number=8)) > 0.9
    assert classifier("crop").fit(*pictures(centre=False)).score(*pictures(centre=False, number=8)) < 0.8


def test_files_choose_the_mode_of_pictures_in_memory(tmp_path: Path) -> None:
    for index, (image, label) in enumerate(zip(*pictures(centre=False, number=6), strict=True)):
        (tmp_path / label).mkdir(exist_ok=True)
        image.save(tmp_path / label / f"{index}.png")
    assert classifier().fit(tmp_path).learner_.resize_mode == "stretch"


def test_lists_of_arrays_choose_the_mode_of_pictures() -> None:
    images, labels = pictures(centre=False, number=6)
    arrays = [np.asarray(image) for image in images]
    assert classifier().fit(arrays, labels).learner_.resize_mode == "stretch"


def test_usual_photographs_are_cropped_without_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: object) -> float:
        raise AssertionError("the modes were compared")

    monkeypatch.setattr(IncrementalClassifier, "_probe", compare)
    images, labels = pictures(centre=True)
    usual = [image.crop((26, 0, 70, 32)) for image in images]  # 44 × 32
    assert classifier().fit(usual, labels).learner_.resize_mode == "crop"
    # Arrays of one size keep it: nothing is resized.
    learner = (
        IncrementalClassifier("analytic-patches", settings=SETTINGS)
        .fit(np.stack([np.asarray(image) for image in images]), labels)
        .learner_
    )
    assert (learner.shape, learner.resize_mode) == ((3, 32, 96), "crop")


def test_one_wide_class_is_stretched_since_nothing_can_be_compared() -> None:
    images, labels = pictures(centre=True)
    assert classifier().fit(images[:4], labels[:4]).learner_.resize_mode == "stretch"


def test_the_mode_is_saved_and_used_for_later_images(wide: IncrementalClassifier, tmp_path: Path) -> None:
    wide.save(tmp_path / "model")
    again = IncrementalClassifier.load(tmp_path / "model")
    assert again.learner_.resize_mode == "stretch"
    images, labels = pictures(centre=False, number=4)
    np.testing.assert_array_equal(again.predict_proba(images), wide.predict_proba(images))
    again.resize_mode = "crop"  # takes effect when learning starts
    np.testing.assert_array_equal(again.predict_proba(images), wide.predict_proba(images))
    assert again.partial_fit(images, labels).learner_.resize_mode == "stretch"


def test_learners_of_two_modes_are_not_merged(wide: IncrementalClassifier) -> None:
    other: Learner = wide.learner_.empty_like()
    other.resize_mode = "crop"
    with pytest.raises(DataError, match=r"differ in resize mode \(crop, stretch\)"):
        other.merge(wide.learner_)


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ConfigError, match="resize mode 'squash'"):
        classifier("squash").fit(*pictures(centre=True))


@pytest.mark.parametrize("mode", ["crop", "stretch", "pad"])
def test_programs_for_export_resize_like_the_classifier(mode: str) -> None:
    """Their translation into ONNX is tested in `deploy/test_onnx.py`."""
    images, labels = pictures(centre=True, number=8)
    learned = classifier(mode).fit(images, labels)
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    probabilities, *_ = DeployedPredictor(learned.learner_)(pixels)
    order = [learned.learner_.classes.index(label) for label in learned.classes_]
    np.testing.assert_allclose(probabilities[:, order], learned.predict_proba(images), atol=5e-3)
