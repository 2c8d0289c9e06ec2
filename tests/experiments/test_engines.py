"""Engines that are installed give the numbers of this process; others are error messages."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from adagauss.errors import AdagaussError, ConfigError, WorkerError
from adagauss.experiments.engines import open_executor
from adagauss.experiments.grid import Workers, run_grid
from adagauss.experiments.run import Run
from tests.experiments.runs import SMALL, STREAM

LIBRARIES = {"ray": "ray", "slurm": "submitit", "dask": "distributed"}


SLOW = [pytest.param(engine, marks=pytest.mark.nightly) for engine in LIBRARIES]


@pytest.mark.parametrize("engine", ["jobs", *SLOW])
def test_an_engine_gives_the_numbers_of_this_process(
    engine: str, alone: dict[str, list[Run]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # the default starves Ray's workers while other tests run
    if engine in LIBRARIES:
        pytest.importorskip(LIBRARIES[engine])
    with open_executor(tmp_path, None if engine == "jobs" else engine, jobs=1) as executor:
        grid = run_grid("finetune", [0], STREAM, tmp_path, epochs=1, settings=SMALL, workers=Workers(executor, 1))
    assert grid.results["finetune"][0].matrix == alone["finetune"][0].matrix


def test_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'slurm'"), open_executor(tmp_path, "slrum"):
        pass


@pytest.mark.parametrize("engine", LIBRARIES)
def test_an_engine_that_is_not_installed_names_its_extra(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, LIBRARIES[engine], None)
    with (
        pytest.raises(ConfigError, match=rf"pip install 'adagauss\[{engine}\]'"),
        open_executor(tmp_path, engine),
    ):
        pass


def test_an_unreachable_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("adagauss.experiments.engines.CONNECT_SECONDS", 0.5)
    with socket.socket() as taken:  # bound but not listening: no process answers there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(WorkerError, match=f"--engine dask={address} cannot be used"),
            open_executor(tmp_path, f"dask={address}"),
        ):
            pass


def test_slurm_without_sbatch_is_an_error_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AdagaussError, match="sbatch"), open_executor(tmp_path, "slurm=gpu"):
        pass
