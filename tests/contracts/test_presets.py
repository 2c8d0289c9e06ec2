"""Every preset of every method learns, and goes on from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.methods import methods
from tests.contracts.toy import LEARNING, NAMES, quick_method, same, scores, state, taught, toy_tasks

PRESETS = [
    (name, preset)
    for name in LEARNING
    for preset in methods()[name].presets
    if preset != methods()[name].default_preset  # which is the method itself, under test elsewhere
]


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_a_preset_learns_and_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(
    name: str, preset: str, tmp_path: Path
) -> None:
    assert quick_method(name, preset) != quick_method(name)
    taught(name, 2, preset).save(tmp_path / "learner.safetensors")
    resumed = Learner.load(tmp_path / "learner.safetensors")
    resumed.learn(toy_tasks()[2])
    assert same(state(resumed), state(taught(name, 3, preset)))
    values = scores(resumed)
    assert values.shape[1] == len(NAMES)
    assert torch.isfinite(values).all()
