"""The log of a run: a file and TensorBoard, without double entries and without gaps."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

import pytest

from adagauss.errors import ConfigError
from adagauss.experiments.grid import Messages
from adagauss.experiments.logs import LOG, RunLog
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import run
from tests.experiments.runs import quick_config


def rows(path: Path) -> list[dict[str, str]]:
    with (path / LOG).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_logs_losses_per_epoch_and_accuracies_per_task(adagauss_run: Path) -> None:
    found = rows(adagauss_run)
    losses = [row for row in found if (row["what"], row["name"]) == ("training", "cross_entropy")]
    assert [(row["task"], row["epoch"], row["step"]) for row in losses] == [
        ("1", "1", "1"),
        ("1", "2", "2"),
        ("2", "1", "3"),
        ("2", "2", "4"),
        ("3", "1", "5"),
        ("3", "2", "6"),
    ]
    history = RunFolder(adagauss_run).evaluation(1)[1].history
    assert float(losses[3]["value"]) == history[1]["cross_entropy"]
    result = Run.open(adagauss_run)
    accuracy = {(row["task"], row["name"]): float(row["value"]) for row in found if row["what"] == "accuracy"}
    assert [accuracy[task, "all"] for task in "123"] == list(result.curve)
    assert accuracy["2", "task 1"] == result.matrix[1][0]
    assert any(row["what"] == "adapter" for row in found)


def test_a_resumed_run_adds_what_is_missing(adagauss_run: Path, tmp_path: Path) -> None:
    before = (adagauss_run / LOG).read_bytes()
    shutil.copytree(adagauss_run, tmp_path / "run")
    lines = before.decode().splitlines(keepends=True)
    (tmp_path / "run" / LOG).write_text("".join(lines[:-4]), encoding="utf-8")  # without the last accuracies
    run(quick_config(), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / LOG).read_bytes() == before


def test_an_epoch_that_is_repeated_is_logged_once_and_a_line_that_was_cut_off_is_repaired(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with RunLog(folder) as log:
        log.epoch("task 1: training", 0, {"a": 1.0, "b": 2.0})
        log.epoch("task 1 without some images: training", 0, {"a": 1.0})
    with (tmp_path / LOG).open("a", encoding="utf-8") as file:
        file.write("training,1,2,")
    with RunLog(folder) as log:
        log.epoch("task 1: training", 0, {"a": 1.0, "b": 2.0})
        log.epoch("task 1: training", 1, {"a": 0.5, "b": 0.25})
    found = [(row["what"], row["epoch"], row["step"], row["name"], row["value"]) for row in rows(tmp_path)]
    assert found == [
        ("training", "1", "1", "a", "1.0"),
        ("training", "1", "1", "b", "2.0"),
        ("training without some images", "1", "1", "a", "1.0"),
        ("training", "2", "2", "a", "0.5"),
        ("training", "2", "2", "b", "0.25"),
    ]


def test_a_log_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / LOG).mkdir()
    messages = Messages()
    with RunLog(RunFolder(tmp_path), reporter=messages) as log:
        log.epoch("task 1: training", 0, {"a": 1.0})
    assert ["goes on without a log" in text for text in messages.texts] == [True]


def test_a_logger_that_is_not_installed_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'adagauss\[tensorboard\]'"):
        run(quick_config("frozen"), tmp_path / "run", logger="tensorboard")
    assert not (tmp_path / "run").exists()


def test_an_unknown_logger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        RunLog(RunFolder(tmp_path), "tensorbord")


def test_tensorboard_gets_each_value_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for epoch in range(2):  # the second time, the first epoch is repeated
        with RunLog(RunFolder(tmp_path), "tensorboard", {"seed": 3, "method.kind": "x"}) as log:
            for again in range(epoch + 1):
                log.epoch("task 1: training", again, {"a": again + 0.5})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("training/a")] == [(1, 0.5), (2, 1.5)]
