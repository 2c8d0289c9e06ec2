"""The log of a run: a file that trackers follow, without double entries and without gaps."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError
from adagauss.experiments import logs
from adagauss.experiments.config import make_config
from adagauss.experiments.logs import LOG, RunLog
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import run
from adagauss.utils.progress import Reporter

STREAM = StreamConfig(dataset="digits", sizes=(2, 2), classes=4)


class Messages(Reporter):
    """Stores messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


class Recorder:
    """A tracker that stores everything, and may stop working."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, float], int]] = []
        self.settings: list[dict[str, Any]] = []
        self.fails_after = 10**9

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if len(self.seen) >= self.fails_after:
            raise ConnectionError("the server is gone")
        self.seen.append((metrics, step))

    def finalize(self, status: str) -> None: ...


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()

    def connect(folder: Path, settings: dict[str, Any]) -> Recorder:
        made.settings.append(settings)
        return made

    monkeypatch.setitem(logs.TRACKERS, "wandb", connect)
    monkeypatch.setattr("adagauss.experiments.logs.import_extra", lambda *_: None)
    return made


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    run(make_config("adagauss", STREAM, epochs=2), path)
    return path


def rows(path: Path) -> list[dict[str, str]]:
    with (path / LOG).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_logs_losses_per_epoch_and_accuracies_per_task(finished: Path) -> None:
    found = rows(finished)
    losses = [row for row in found if (row["what"], row["name"]) == ("training", "cross_entropy")]
    assert [(row["task"], row["epoch"], row["step"]) for row in losses] == [
        ("1", "1", "1"),
        ("1", "2", "2"),
        ("2", "1", "3"),
        ("2", "2", "4"),
    ]
    history = RunFolder(finished).evaluation(1)[1].history
    assert float(losses[3]["value"]) == history[1]["cross_entropy"]
    result = Run.open(finished)
    accuracy = {(row["task"], row["name"]): float(row["value"]) for row in found if row["what"] == "accuracy"}
    assert [accuracy["1", "all"], accuracy["2", "all"]] == list(result.curve)
    assert accuracy["2", "task 1"] == result.matrix[1][0]
    assert any(row["what"] == "adapter" for row in found)


def test_a_resumed_run_adds_only_what_is_new_to_the_log_and_to_a_tracker(
    finished: Path, recorder: Recorder, tmp_path: Path
) -> None:
    before = (finished / LOG).read_bytes()
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "tasks" / "02")
    lines = before.decode().splitlines(keepends=True)
    (tmp_path / "run" / LOG).write_text("".join(lines[:-3]), encoding="utf-8")  # without the last accuracies
    run(make_config("adagauss", STREAM, epochs=2), tmp_path / "run", resume=True, trackers=["wandb"])
    assert (tmp_path / "run" / LOG).read_bytes() == before
    assert [(set(values), step) for values, step in recorder.seen] == [
        ({"accuracy/all", "accuracy/task 1", "accuracy/task 2"}, 2)
    ]
    assert recorder.settings[0]["method_name"] == "adagauss"


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


def test_a_tracker_that_fails_is_reported_once(tmp_path: Path, recorder: Recorder) -> None:
    folder, messages = RunFolder(tmp_path), Messages()
    recorder.fails_after = 1
    with RunLog(folder, ["wandb"], {}, messages) as log:
        for epoch in range(3):
            log.epoch("task 1: training", epoch, {"a": float(epoch)})
    assert len(messages.texts) == 1
    assert "--logger wandb does not work (ConnectionError: the server is gone)" in messages.texts[0]
    assert len(rows(tmp_path)) == 3


def test_a_log_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path, recorder: Recorder) -> None:
    (tmp_path / LOG).mkdir()
    messages = Messages()
    with RunLog(RunFolder(tmp_path), ["wandb"], {}, messages) as log:
        log.epoch("task 1: training", 0, {"a": 1.0})
    assert recorder.seen == [({"training/a": 1.0}, 1)]
    assert "goes on without a log" in messages.texts[0]


@pytest.mark.parametrize("name", logs.TRACKERS)
def test_a_tracker_that_is_not_installed_names_its_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'adagauss\[{name}\]'"):
        run(make_config("frozen", STREAM), tmp_path / "run", trackers=[name])
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'wandb'"):
        RunLog(RunFolder(tmp_path), ["wandv"])


def entries(folder: RunFolder, name: str) -> None:
    for epoch in range(2):
        with RunLog(folder, [name], {"seed": 3, "method.kind": "x"}) as log:
            for again in range(epoch + 1):
                log.epoch("task 1: training", again, {"a": again + 0.5})


def test_tensorboard_gets_each_value_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    entries(RunFolder(tmp_path), "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("training/a")] == [(1, 0.5), (2, 1.5)]


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    folder = RunFolder(tmp_path)
    entries(folder, "wandb")
    parts = [path.name.split("-")[3] for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert parts == [(tmp_path / "wandb-id").read_text(encoding="utf-8")] * 2
