"""A worker reports to its session, and stops when the heartbeat ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from adagauss.errors import CheckpointError, WorkerError
from adagauss.experiments.engines import (
    HEARTBEAT,
    HEARTBEAT_TIMEOUT,
    CancelledError,
    HeartbeatReporter,
    session,
    status,
)


class Clock:
    """A time of one's own."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / HEARTBEAT).write_text("0", encoding="ascii")
    return tmp_path / "out"


def test_a_session_says_what_its_workers_do(folder: Path) -> None:
    clock = Clock()
    assert status(folder, 3) == {}, "it has not begun"
    reporter = HeartbeatReporter(folder, 3, clock=clock)
    with reporter.progress("adagauss", 5) as tasks, reporter.progress("task 2: training", 8) as epochs:
        tasks("accuracy 90 %")
        clock.now += 2
        epochs("loss 0.5")
    assert status(folder, 3)["now"] == "1/5 accuracy 90 % | task 2: training: 1/8 loss 0.5"
    assert status(folder, 4) == {}


def test_work_goes_on_while_the_heart_beats_and_ends_when_it_stops(folder: Path) -> None:
    clock = Clock()
    reporter = HeartbeatReporter(folder, 0, clock=clock)
    with reporter.progress("task 1", 8) as advance:
        for beat in range(3):
            (folder / HEARTBEAT).write_text(str(beat + 1), encoding="ascii")
            clock.now += 0.9 * HEARTBEAT_TIMEOUT
            advance()
        clock.now += 0.9 * HEARTBEAT_TIMEOUT
        advance()
        clock.now += 0.2 * HEARTBEAT_TIMEOUT
        with pytest.raises(CancelledError):
            advance()


def test_work_ends_at_once_when_its_session_is_closed(tmp_path: Path) -> None:
    clock = Clock()
    with session(tmp_path) as folder:
        reporter = HeartbeatReporter(folder, 0, clock=clock)
    clock.now += 2
    with pytest.raises(CancelledError), reporter.progress("task 1", 8) as advance:
        advance()
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_does_not_share_the_folder_is_told(folder: Path) -> None:
    shutil.rmtree(folder)
    with pytest.raises(WorkerError, match="does not see"):
        HeartbeatReporter(folder, 0)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with pytest.raises(CheckpointError, match="choose another --out"), session(tmp_path / "file"):
        pass
