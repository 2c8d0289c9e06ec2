"""Two processes that learn together know what one process would know, for every method."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adagauss.core import task
from adagauss.distributed import launch as launching
from adagauss.distributed.launch import launch
from adagauss.errors import ProcessError
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import run
from adagauss.utils.checkpoint import load_tensors
from tests.contracts.pair import CPU, VARIANTS, learn_all, run_config, take_part
from tests.faults.budget import TORTURE
from tests.processes import FORKSERVER, preload

TOLERANCE = 1e-3
"""Largest difference relative to the largest number of a tensor. Float32 rounds at 1e-7; training multiplies it."""
NEARLY_SINGULAR = 0.1
"""For what Gaussians of nine images in 24 features say of the tenth: weights changed by 1e-7 change that by 1e-2."""


def difference(one: Tensor, other: Tensor) -> float:
    """The largest, relative to the largest number."""
    if one.shape != other.shape:
        return float("inf")
    if not one.numel():
        return 0.0
    return float((one.double() - other.double()).abs().max() / one.double().abs().max().clamp_min(1e-6))


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    """What differs, and how much."""
    if one.keys() != other.keys():
        return {"names": float("inf")}
    found = {name: difference(tensor, other[name]) for name, tensor in one.items()}
    loose = (".blend.", "evidence.nll")
    return {
        name: value
        for name, value in found.items()
        if value > (NEARLY_SINGULAR if any(one in name for one in loose) else TOLERANCE)
    }


def said(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"found-{rank}.json").read_text(encoding="utf-8"))
    return found


def test_two_processes_learn_what_one_learns_and_a_killed_one_ends_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "FEATURE_BATCH", task.FEATURE_BATCH)  # restored afterwards
    if FORKSERVER and TORTURE == 1:  # spawned processes import torch, which takes longer than all that they learn
        monkeypatch.setattr(launching, "START_METHOD", "forkserver")
        preload()
    two, one, config = tmp_path / "two", tmp_path / "one", run_config()
    for folder in (two, one):
        folder.mkdir()
    learn_all(one)
    alone = run(config, one / "run")
    shutil.copytree(one / "run", two / "run")
    shutil.rmtree(RunFolder(two / "run").task(1))  # one process has learned the first task only

    with pytest.raises(ProcessError, match=r"process 1 of 2 was terminated by SIGKILL"):
        launch(take_part, 2, CPU, two, config)

    wrong = {}
    for title in VARIANTS:
        (mine, facts), (first, heard), (second, _) = (
            load_tensors(folder / f"{title}-{rank}", "learner") for folder, rank in ((one, 0), (two, 0), (two, 1))
        )
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items()), title
        torch.testing.assert_close(heard["history"], facts["history"], rtol=1e-3, atol=1e-5, msg=title)
        if found := differences(mine, first):
            wrong[title] = found
    assert wrong == {}
    heard_of = said(two, 0)
    assert heard_of == said(two, 1)
    assert heard_of["snapshot"] == [
        {"step": 3, "weights": [[1.0, 0.0], [0.0, 1.0]]},
        {"history": [{"loss": 0.1}]},
    ]
    assert heard_of["confusions"] == [[0, 0, 1], [1, 0, 1], [1, 1, 1]]
    assert heard_of["metrics"] == pytest.approx(alone.metrics, abs=0.02)
    assert Run.open(two / "run").metrics == heard_of["metrics"]
    assert RunFolder(two / "run").read_json_or_nothing("environment.json")["processes"] == "1"
