"""Classes whose images have the same features are reported when the second one is taught."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adagauss import IncrementalClassifier
from adagauss.analytic.batches import teach_shards

BLACK, WHITE = (np.full((8, 16, 16, 3), level, np.uint8) for level in (0, 255))
NOISE = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
SETTINGS = {"backbone.options.filters": 20, "backbone.options.patches": 200}


def classifier(method: str = "analytic-patches", **settings: Any) -> IncrementalClassifier:
    return IncrementalClassifier(method, settings={**SETTINGS, **settings})


def test_black_and_white_images_of_two_classes() -> None:
    one = classifier().fit(NOISE, ["noise"] * 24).partial_fit(BLACK, "black")
    with pytest.warns(UserWarning, match="classes 'white' and 'black' have the same features"):
        one.partial_fit(WHITE, "white")
    with pytest.warns(UserWarning, match="classes 'black' and 'white' have the same features"):
        classifier().fit(np.concatenate([BLACK, WHITE]), ["black"] * 8 + ["white"] * 8)


def test_the_same_images_of_two_classes_with_a_trained_network() -> None:
    settings = {"backbone.name": "convnet", "backbone.features": 8}
    one = IncrementalClassifier("frozen", settings=settings, epochs=1)
    with pytest.warns(UserWarning, match="'a' and 'b' have the same features"):
        one.fit(np.concatenate([NOISE, NOISE]), ["a"] * 24 + ["b"] * 24)


def test_classes_that_differ_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*same features.*")
        one = classifier().fit(np.concatenate([NOISE[:8], NOISE[8:16]]), ["a"] * 8 + ["b"] * 8)
        one.partial_fit(np.concatenate([BLACK, NOISE[16:]]), ["c"] * 16)
        one.partial_fit(NOISE[:8], "a")


def test_shards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    learner = classifier().fit(NOISE, ["noise"] * 24).empty_like().learner_
    np.savez(tmp_path / "x.npz", images=np.concatenate([BLACK, WHITE]), labels=np.repeat(["black", "white"], 8))
    with caplog.at_level(logging.WARNING):
        teach_shards(learner, [tmp_path / "x.npz"])
    assert "'black' and 'white' have the same features" in caplog.text
