"""Every preset of every method learns, and goes on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adagauss.core.config import flatten, plain
from adagauss.core.learn import Learner
from adagauss.methods import make_method, methods
from tests.contracts.toy import LEARNING, NAMES, quick_method, same, scores, state, taught, toy_tasks

PRESETS = [
    (name, preset)
    for name in LEARNING
    for preset in methods()[name].presets
    if preset != methods()[name].default_preset  # which is the method itself, under test elsewhere
]


def clipped(name: str) -> dict[str, Any]:
    """What keeps the letter of AdaGauss' text, in which nothing is clipped, from diverging (see test_ablation)."""
    return {key: 1.0 for key in flatten(plain(make_method(name, "paper"))) if key.endswith(".clip_norm")}


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_a_preset_learns_and_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(
    name: str, preset: str, tmp_path: Path
) -> None:
    assert quick_method(name, preset) != quick_method(name)
    settings = clipped(name) if preset == "paper" else {}
    taught(name, 2, preset, **settings).save(tmp_path / "learner.safetensors")
    resumed = Learner.load(tmp_path / "learner.safetensors")
    resumed.learn(toy_tasks()[2])
    assert same(state(resumed), state(taught(name, 3, preset, **settings)))
    values = scores(resumed)
    assert values.shape[1] == len(NAMES)
    assert torch.isfinite(values).all()
