"""Runs with a damaged file: the way out that the error names leads to the numbers of an undamaged run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from adagauss.errors import CheckpointError
from adagauss.experiments.config import make_config
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import run
from adagauss.utils.checkpoint import load_tensors
from tests.experiments.runs import metrics_of, quick_config

SHORT = {"representation.first.epochs": 1, "representation.later.epochs": 1}
CONFIG = quick_config("finetune", **SHORT)
STILL = make_config("exact", CONFIG.stream, settings={"backbone.options.filters": 8})
"""Keeps only its newest learner."""


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "whole"
    run(CONFIG, path)
    return path


@pytest.fixture(scope="module")
def undamaged_still(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "still"
    run(STILL, path)
    return path


@pytest.mark.parametrize("name", ["03/learner", "01/evaluation", "02/evaluation", "03/evaluation"])
def test_the_advice_works_where_earlier_learners_are_not_kept(undamaged_still: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(undamaged_still, path)
    shutil.rmtree(path / "tasks" / name[:2])  # as the error for a damaged file says
    run(STILL, path, resume=True)
    assert metrics_of(path) == metrics_of(undamaged_still)
    assert RunFolder(path).last_checkpoint().exists()


def test_a_finished_run_without_its_learner_learns_nothing_again(undamaged_still: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(undamaged_still, path)
    learner = RunFolder(path).last_checkpoint()
    learner.unlink()
    run(STILL, path, resume=True)
    assert metrics_of(path) == metrics_of(undamaged_still)
    assert not learner.exists()


@pytest.mark.parametrize("name", ["01/learner", "02/learner", "03/learner", "01/evaluation", "03/evaluation"])
def test_the_advice_for_a_damaged_file_works(undamaged: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(undamaged, path)
    file = path / "tasks" / f"{name}.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 16
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged") as raised:
        load_tensors(file, name.partition("/")[2])
    advice = re.search(r"delete the folder (.*) and continue with --resume", str(raised.value))
    assert advice is not None
    shutil.rmtree(advice[1])
    run(CONFIG, path, resume=True)
    assert metrics_of(path) == metrics_of(undamaged)
    folder = RunFolder(path)
    assert [folder.evaluation(index)[0].sizes for index in range(3)] == [(2,), (2, 2), (2, 2, 1)]
