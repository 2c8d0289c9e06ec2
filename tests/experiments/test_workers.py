"""Worker processes: a crash of one does not affect the others, and none outlives the process that waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from filelock import FileLock

from adagauss.distributed.launch import _end_with
from adagauss.errors import ConfigError
from adagauss.experiments.engines import WorkerProcesses

DEADLINE = 240.0
"""Seconds after which a test gives up."""


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hold(folder: str) -> None:
    """Hold a lock until this process is ended."""
    with FileLock(f"{folder}/lock"):
        (Path(folder) / "pid").write_text(str(os.getpid()), encoding="ascii")
        time.sleep(2 * DEADLINE)


def until(true: Callable[[], bool]) -> bool:
    started = time.monotonic()
    while not true() and time.monotonic() - started < DEADLINE:
        time.sleep(0.05)
    return true()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A child whose end was not awaited yet is dead as well.
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "Z"


@pytest.fixture
def two() -> Iterator[WorkerProcesses]:
    executor = WorkerProcesses(2)
    yield executor
    executor.shutdown(cancel_futures=True)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_one_that_is_killed_does_not_break_the_others(two: WorkerProcesses, tmp_path: Path) -> None:
    other = two.submit(hold, str(tmp_path))
    with pytest.raises(BrokenProcessPool):
        two.submit(killed).result(DEADLINE)
    assert two.submit(os.getpid).result(DEADLINE) != os.getpid(), "a new process has taken its place"
    assert not other.done()
    assert until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text(encoding="ascii"))
    two.shutdown(cancel_futures=True)
    assert until(lambda: gone(pid)), "stopping does not wait for the work"


def child_of_a_killed(code: str, folder: Path) -> int:
    """The process that `code` started and that wrote its number to `folder`, after `code`'s own process is killed."""
    (folder / "parent.py").write_text(code, encoding="utf-8")
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    parent = subprocess.Popen([sys.executable, folder / "parent.py"], env={**os.environ, "PYTHONPATH": paths})
    try:
        assert until((folder / "pid").exists)
    finally:
        parent.kill()
        parent.wait()
    return int((folder / "pid").read_text(encoding="ascii"))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_nothing_is_left_running_or_locked_if_the_waiting_process_is_killed(tmp_path: Path) -> None:
    code = (
        "from adagauss.experiments.engines import WorkerProcesses\n"
        "from tests.experiments.test_workers import hold\n"
        f"if __name__ == '__main__': WorkerProcesses(1).submit(hold, {str(tmp_path)!r}).result()\n"
    )
    pid = child_of_a_killed(code, tmp_path)
    assert until(lambda: gone(pid))
    with FileLock(tmp_path / "lock", timeout=10):
        pass


def attended(folder: str, parent: int) -> None:
    (Path(folder) / "pid").write_text(str(os.getpid()), encoding="ascii")
    _end_with(parent)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_that_learns_with_others_ends_after_the_one_that_started_it(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, os, signal\n"
        "from tests.experiments.test_workers import attended\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background\n"
        "    context = multiprocessing.get_context('spawn')\n"
        f"    context.Process(target=attended, args=({str(tmp_path)!r}, os.getpid())).start()\n"
    )
    pid = child_of_a_killed(code, tmp_path)
    assert until(lambda: gone(pid))


def test_no_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        WorkerProcesses(0)
