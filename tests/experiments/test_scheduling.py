"""Many runs through an executor: the numbers of one after another, and failures as values."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.errors import DataError, NumericalError, WorkerError
from adagauss.experiments import grid as grid_module
from adagauss.experiments.config import make_config
from adagauss.experiments.grid import TRACEBACK, Outcome, RunSpec, Workers, run_grid, run_specs
from adagauss.experiments.run import Run
from adagauss.utils.progress import LineReporter
from tests.experiments.runs import SMALL, STREAM


class Here(Executor):
    """Runs at once."""

    calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def make_specs(out: Path, *names: str) -> list[RunSpec]:
    config = make_config("frozen", STREAM, epochs=1, settings=SMALL)
    return [RunSpec(name, config, out / name) for name in names]


def test_workers_with_another_current_folder_write_into_the_same_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(Here):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            with monkeypatch.context() as patch:
                patch.chdir(tmp_path / "elsewhere")
                return super().submit(fn, *args, **kwargs)

    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ((spec, outcome),) = run_specs(make_specs(Path("out"), "one"), Path("out"), Workers(Elsewhere()))
    assert outcome.result is not None
    assert spec.folder == Path("out/one")
    assert (tmp_path / "here/out/one/metrics.json").exists()


def test_a_seed_that_is_given_twice_is_run_and_counted_once(tmp_path: Path) -> None:
    grid = run_grid("frozen", [0, 0], STREAM, tmp_path, epochs=1, settings=SMALL)
    assert len(grid.results["frozen"]) == 1


def test_an_executor_gives_the_numbers_of_one_after_another(alone: dict[str, list[Run]], tmp_path: Path) -> None:
    out = io.StringIO()
    with ThreadPoolExecutor(2) as executor:
        grid = run_grid(
            "finetune,frozen",
            [0],
            STREAM,
            tmp_path,
            epochs=1,
            settings=SMALL,
            workers=Workers(executor, reporter=LineReporter(Console(file=out, width=200))),
        )
    assert list(grid.results) == ["finetune", "frozen"]
    for name, (result,) in grid.results.items():
        assert result.matrix == alone[name][0].matrix
    assert f"frozen, seed 0: done {100 * alone['frozen'][0].curve[-1]:.1f} %" in out.getvalue()


def test_a_run_that_kills_its_workers_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(spec: RunSpec, *_: Any) -> Outcome:
        if spec.name == "deadly":
            raise RuntimeError("the memory of the node is full")  # as engines put it
        return Outcome(failure=WorkerError("harmless"))

    monkeypatch.setattr("adagauss.experiments.grid.work", deadly)
    with ThreadPoolExecutor(1) as executor:
        outcomes = list(run_specs(make_specs(tmp_path, "deadly", "b"), tmp_path, Workers(executor)))
    found = {spec.name: str(outcome.failure) for spec, outcome in outcomes}
    assert found["b"] == "harmless"
    assert "its worker ended (RuntimeError: the memory of the node is full): it was killed" in found["deadly"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NumericalError("lower the learning rate"), "lower the learning rate"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (MemoryError(), "the memory is full"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            "the memory is full",
        ),
        (ZeroDivisionError("of nothing"), "unexpected error (ZeroDivisionError: of nothing)"),
    ],
)
def test_errors_are_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def fail(*_: Any, **__: Any) -> Run:
        raise error

    monkeypatch.setattr(grid_module, "run", fail)
    (spec,) = make_specs(tmp_path, "a")
    spec.folder.mkdir()
    ((_, outcome),) = run_specs([spec], tmp_path, Workers(Here()))
    assert message in str(outcome.failure)
    assert (spec.folder / TRACEBACK).exists() == isinstance(error, ZeroDivisionError)


def test_runs_on_different_data_are_not_compared(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(Here):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if self.calls:
                monkeypatch.setattr(grid_module, "load_dataset", lambda *_: replace(digits, test=digits.train))
            grid_module._load.cache_clear()
            return super().submit(fn, *args, **kwargs)

    with pytest.raises(DataError, match="read different data"):
        run_grid("frozen", [0, 1], STREAM, tmp_path, epochs=1, settings=SMALL, workers=Workers(Other()))
    grid_module._load.cache_clear()


def test_a_worker_that_does_not_see_the_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    outcome = grid_module.work(make_specs(tmp_path, "a")[0], tmp_path / "out", ReadOptions())
    assert "that all of them share" in str(outcome.failure)


def test_at_most_that_many_runs_are_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagauss.experiments.grid.work", lambda *_: Outcome(failure=WorkerError("x")))
    taken: list[str] = []

    def source() -> Any:
        for spec in make_specs(tmp_path, "a", "b", "c"):
            taken.append(spec.name)
            yield spec

    assert [len(taken) for _ in run_specs(source(), tmp_path, Workers(Here(), 1))] == [1, 2, 3]
