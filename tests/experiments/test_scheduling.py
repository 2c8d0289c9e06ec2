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
from adagauss.data.stream import StreamConfig
from adagauss.errors import DataError, NumericalError, WorkerError
from adagauss.experiments import grid as grid_module
from adagauss.experiments.config import make_config
from adagauss.experiments.grid import TRACEBACK, Outcome, RunSpec, WorkerContext, run_grid, run_specs
from adagauss.experiments.run import Run
from adagauss.utils.progress import LineReporter

STREAM = StreamConfig(dataset="digits", sizes=(2, 2), classes=4)


class Here(Executor):
    """Runs at once, and dies as often as it is told to."""

    def __init__(self, deaths: int = 0) -> None:
        self.deaths = deaths
        self.calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        if self.calls <= self.deaths:
            future.set_exception(RuntimeError("the node is gone"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    return run_grid("finetune,frozen", [0], STREAM, tmp_path_factory.mktemp("alone"), epochs=1).results


def make_cells(out: Path, *names: str) -> list[RunSpec]:
    config = make_config("frozen", STREAM, epochs=1)
    return [RunSpec(name, config, out / name) for name in names]


def test_workers_write_into_the_folder_that_was_meant_whatever_theirs_is(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(Here):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            with monkeypatch.context() as patch:
                patch.chdir(tmp_path / "elsewhere")
                return super().submit(fn, *args, **kwargs)

    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ((spec, outcome),) = run_specs(make_cells(Path("out"), "one"), Path("out"), digits, executor=Elsewhere())
    assert outcome.result is not None
    assert spec.folder == Path("out/one")
    assert (tmp_path / "here/out/one/metrics.json").exists()


def test_a_seed_that_is_given_twice_is_run_and_counted_once(tmp_path: Path) -> None:
    grid = run_grid("frozen", [0, 0], STREAM, tmp_path, epochs=1)
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
            executor=executor,
            reporter=LineReporter(Console(file=out, width=200)),
        )
    assert list(grid.results) == ["finetune", "frozen"]
    for name, (result,) in grid.results.items():
        assert result.matrix == alone[name][0].matrix
    assert f"frozen, seed 0: done {100 * alone['frozen'][0].curve[-1]:.1f} %" in out.getvalue()
    assert not list(tmp_path.glob(".session*")), "the session is removed"


def test_a_cell_whose_worker_dies_is_resumed(digits: Dataset, tmp_path: Path) -> None:
    out = io.StringIO()
    reporter = LineReporter(Console(file=out, width=200))
    executor = Here(deaths=1)
    ((_, outcome),) = run_specs(make_cells(tmp_path, "a"), tmp_path, digits, executor=executor, reporter=reporter)
    assert outcome.result is not None
    assert executor.calls == 2
    assert "a: its worker ended (RuntimeError: the node is gone); it is resumed" in out.getvalue()


def test_a_cell_that_kills_its_workers_is_reported_and_the_others_go_on(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(spec: RunSpec, number: int, context: WorkerContext) -> Outcome:
        if spec.name == "deadly":
            raise RuntimeError("the memory of the node is full")  # as engines put it
        return Outcome(failure=WorkerError("harmless"))

    monkeypatch.setattr("adagauss.experiments.grid.work", deadly)
    with ThreadPoolExecutor(1) as executor:
        outcomes = run_specs(make_cells(tmp_path, "deadly", "b"), tmp_path, digits, executor=executor)
    found = {spec.name: str(outcome.failure) for spec, outcome in outcomes}
    assert found["b"] == "harmless"
    assert "its worker ended (RuntimeError: the memory of the node is full), 2 times" in found["deadly"]


@pytest.mark.parametrize(
    ("error", "said"),
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
def test_errors_are_values(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*_: Any, **__: Any) -> Run:
        raise error

    monkeypatch.setattr(grid_module, "run", fail)
    (spec,) = make_cells(tmp_path, "a")
    spec.folder.mkdir()
    ((_, outcome),) = run_specs([spec], tmp_path, digits, executor=Here())
    assert said in str(outcome.failure)
    assert (spec.folder / TRACEBACK).exists() == isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize("several", [False, True])
def test_a_machine_with_other_data_says_so_and_runs_nothing(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    class Other(Here):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            monkeypatch.setattr(grid_module, "load_dataset", lambda *_: replace(digits, test=digits.train))
            grid_module._read.cache_clear()
            return super().submit(fn, *args, **kwargs)

    (spec,) = make_cells(tmp_path, "a")
    given: dict[str, Any] = {"reader": lambda _: digits} if several else {"dataset": digits}
    ((_, outcome),) = run_specs([spec], tmp_path, executor=Other(), **given)
    grid_module._read.cache_clear()
    assert "reads other data (number and size of the test images" in str(outcome.failure)
    assert not spec.folder.exists()


def test_data_that_only_the_workers_have_are_not_compared(digits: Dataset, tmp_path: Path) -> None:
    def missing(_: StreamConfig) -> Dataset:
        raise DataError("not here")

    said = io.StringIO()
    reporter = LineReporter(Console(file=said))
    ((_, outcome),) = run_specs(make_cells(tmp_path, "a"), tmp_path, reader=missing, executor=Here(), reporter=reporter)
    assert outcome.result is not None
    assert "digits cannot be read here, so what workers read is not compared" in " ".join(said.getvalue().split())


@pytest.mark.parametrize("executor", [None, Here()])
def test_cells_of_several_datasets_read_their_own(
    executor: Executor | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def note(name: str, _: ReadOptions) -> Dataset:
        read.append(name)
        return load_dataset("digits")

    monkeypatch.setattr(grid_module, "load_dataset", note)
    monkeypatch.setattr(grid_module, "run", lambda *_, **__: (_ for _ in ()).throw(WorkerError("x")))
    grid_module._read.cache_clear()
    config = make_config("frozen", STREAM)
    specs = [
        RunSpec(f"{number}", config.model_copy(update={"stream": StreamConfig(dataset=name)}), tmp_path / f"{number}")
        for number, name in enumerate(["digits", "digits", "cifar100"])
    ]
    run_specs(specs, tmp_path, executor=executor)
    grid_module._read.cache_clear()
    assert read == ["digits", "cifar100"]


def test_a_worker_that_gave_up_waiting_is_sent_again(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([Outcome(failure=WorkerError("x"), cancelled=True)] * 3 + [Outcome(failure=WorkerError("end"))])
    monkeypatch.setattr("adagauss.experiments.grid.work", lambda *_: next(answers))
    ((_, outcome),) = run_specs(make_cells(tmp_path, "a"), tmp_path, digits, executor=Here())
    assert str(outcome.failure) == "end"


def test_no_more_are_handed_over_than_asked_for(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adagauss.experiments.grid.work", lambda *_: Outcome(failure=WorkerError("x")))
    taken: list[str] = []

    def source() -> Any:
        for spec in make_cells(tmp_path, "a", "b", "c"):
            taken.append(spec.name)
            yield spec

    seen: list[int] = []
    run_specs(source(), tmp_path, digits, executor=Here(), most=1, then=lambda *_: seen.append(len(taken)), total=3)
    assert seen == [1, 2, 3]


def test_an_outcome_may_be_followed_by_another_cell(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid_module, "run", lambda *_, **__: (_ for _ in ()).throw(WorkerError("x")))
    first, second = make_cells(tmp_path, "a", "b")
    for executor in (None, Here()):
        outcomes = run_specs(
            [first], tmp_path, digits, executor=executor, then=lambda spec, _: second if spec is first else None
        )
        assert [spec.name for spec, _ in outcomes] == ["a", "b"]
