"""Engines that are installed give the numbers of this process; others are error messages."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adagauss.core.config import Part
from adagauss.errors import AdagaussError, ConfigError, WorkerError
from adagauss.experiments.engines import open_executor
from adagauss.experiments.grid import Workers, run_grid
from adagauss.experiments.run import Run
from adagauss.methods import base
from tests.experiments.runs import SMALL, STREAM

LIBRARIES = {"ray": "ray", "slurm": "submitit", "dask": "distributed"}


FAULTY = "tests.experiments.faulty:faulty"


@pytest.fixture
def faulty_method() -> Iterator[str]:
    """A method that loses its worker or its disk once, which other tests must not find among the methods."""
    yield FAULTY
    base._METHODS.remove("faulty")
    Part._registry["drift"].remove("faulty")
    del sys.modules[FAULTY.partition(":")[0]]


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and limits of file sizes")
@pytest.mark.parametrize("fault", ["killed", "full disk"])
@pytest.mark.parametrize("engine", ["jobs", *(one for one in SLOW if one.values != ("ray",))])
def test_a_run_that_loses_its_worker_or_its_disk_resumes_and_the_others_go_on(
    engine: str, fault: str, faulty_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine in LIBRARIES:
        pytest.importorskip(LIBRARIES[engine])
    (tmp_path / "fault").write_text(fault, encoding="ascii")
    monkeypatch.setenv("ADAGAUSS_TEST_FAULT", str(tmp_path / "fault"))
    found = []
    for _ in range(2):  # the second time there is no fault
        with open_executor(tmp_path, None if engine == "jobs" else engine, jobs=2) as executor:
            workers = Workers(executor, 2)
            found.append(run_grid(faulty_method, [0, 1], STREAM, tmp_path, epochs=1, settings=SMALL, workers=workers))
    faulty, resumed = found
    repeated = (engine, fault) == ("dask", "killed")  # Dask gives the run to another worker by itself, which resumes it
    assert len(faulty.results[faulty_method]) == 1 + repeated
    assert faulty.failures.keys() == set() if repeated else {faulty_method}
    assert not resumed.failures
    alone = run_grid(faulty_method, [0, 1], STREAM, tmp_path / "alone", epochs=1, settings=SMALL)
    assert [run.matrix for run in resumed.results[faulty_method]] == [
        run.matrix for run in alone.results[faulty_method]
    ]


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
