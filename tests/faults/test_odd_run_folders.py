"""Run folders in which something else stands in the place of a file: an error, at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from adagauss.errors import CheckpointError
from adagauss.experiments.run import RunFolder

NAMES = ("config.yaml", "metrics.json", "tasks/01/learner.safetensors", "tasks/01/evaluation.safetensors")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def not_utf8(path: Path) -> None:
    path.write_bytes(b"\xff\xfe{")


@pytest.mark.parametrize("odd", [pipe, folder, loop, not_utf8])
@pytest.mark.parametrize("name", NAMES)
def test_something_odd_in_the_place_of_a_file_gives_a_message(
    name: str, odd: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    odd(tmp_path / name)
    run = RunFolder(tmp_path)
    if "learner" in name:
        from adagauss.core.learn import Learner

        with pytest.raises(CheckpointError):
            Learner.load(tmp_path / name)
        return
    if name == "metrics.json":
        assert run.read_json_or_nothing(name) == {}
        return
    read = {"config.yaml": lambda: run.config}.get(name, lambda: run.evaluation(0))
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        read()


@pytest.mark.parametrize("odd", [pipe, folder, loop, not_utf8])
@pytest.mark.parametrize("name", ["environment.json", "data.json", "origins.json"])
def test_something_odd_next_to_the_results_counts_as_missing(
    name: str, odd: Callable[[Path], None], tmp_path: Path
) -> None:
    odd(tmp_path / name)
    assert RunFolder(tmp_path).read_json_or_nothing(name) == {}
