"""Effort instead of a method."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_digits

from adagauss.backbones.registry import BackboneInfo
from adagauss.classifier import IncrementalClassifier
from adagauss.errors import ConfigError

Array = npt.NDArray[Any]
DIGITS = load_digits()
PIXELS: Array = np.rint(DIGITS.images * (255 / 16)).astype(np.uint8)


@pytest.mark.parametrize("installed", [True, False])
def test_no_effort_trains(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackboneInfo, "available", installed)
    for effort in ("quick", "good"):
        assert not IncrementalClassifier(effort=effort)._method(photographs=False).trains


def test_effort_chooses_the_method_itself() -> None:
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        IncrementalClassifier(effort="quik").fit(PIXELS[:2], [0, 1])
    for classifier in (
        IncrementalClassifier("adagauss", effort="quick"),
        IncrementalClassifier(backbone="convnet", effort="quick"),
    ):
        with pytest.raises(ConfigError, match="chooses the method itself"):
            classifier.fit(PIXELS[:2], [0, 1])


def test_quick_learns_without_a_pretrained_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackboneInfo, "available", False)
    classifier = IncrementalClassifier(effort="quick").fit(PIXELS[:300], DIGITS.target[:300])
    assert classifier.learner_.network.extractor.size == 1600
    assert classifier.score(PIXELS[300:600], DIGITS.target[300:600]) > 0.7
