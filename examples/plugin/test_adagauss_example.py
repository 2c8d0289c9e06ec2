"""Tests of the plugin: `python -m pytest` in this folder, after `pip install -e .`."""

from __future__ import annotations

from pathlib import Path

import torch
from adagauss_example import Momentum, TinyNet, Velocity

from adagauss.core.gaussians import ClassGaussians
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import make_config
from adagauss.experiments.runner import run

SETTINGS = {"backbone.name": "tiny_net", "drift.momentum": 0.5}


def test_a_run(tmp_path: Path) -> None:
    config = make_config("momentum", StreamConfig(dataset="stripes", tasks=3), settings=SETTINGS, epochs=2)
    result = run(config, tmp_path)
    assert result.metrics["worst_task"] == min(result.matrix[-1])


def test_the_drift_adds_the_last_shift() -> None:
    class Task:
        first = False
        drift_state = Velocity(shift=torch.tensor([0.0, 2.0]))

        def features(self, previous: bool = False) -> torch.Tensor:
            return torch.zeros(3, 2) if previous else torch.ones(3, 2)

    memory = ClassGaussians(2)
    memory.add(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), ["a", "a"])
    moved = Momentum(momentum=0.5).move(memory, Task())  # type: ignore[arg-type]
    assert moved.means.tolist() == [[3.0, 2.0]]


def test_features_have_the_declared_width() -> None:
    network = TinyNet(channels=5)
    assert network(torch.zeros(2, 5, 12, 12)).shape == (2, network.width)
