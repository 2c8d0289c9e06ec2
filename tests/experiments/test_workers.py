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

from adagauss.errors import ConfigError
from adagauss.experiments.engines import WorkerProcesses
from tests.experiments.holding import DEADLINE, hold


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


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


WORKER = "WorkerProcesses(1).submit(hold, {folder!r}).result()"
LEARNER = "get_context('spawn').Process(target=hold, args=({folder!r}, True)).start()"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("work", [WORKER, LEARNER], ids=["worker", "distributed"])
def test_nothing_is_left_running_or_locked_if_the_waiting_process_is_killed(work: str, tmp_path: Path) -> None:
    lines = (
        "import os, signal",
        "from multiprocessing import get_context",
        "from adagauss.experiments.engines import WorkerProcesses",
        "from tests.experiments.holding import hold",
        "if __name__ == '__main__':",
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background",
        f"    {work.format(folder=str(tmp_path))}",
    )
    (tmp_path / "parent.py").write_text("\n".join(lines), encoding="utf-8")
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py"], env={**os.environ, "PYTHONPATH": paths})
    try:
        assert until((tmp_path / "pid").exists)
    finally:
        parent.kill()
        parent.wait()
    pid = int((tmp_path / "pid").read_text(encoding="ascii"))
    assert until(lambda: gone(pid))
    with FileLock(tmp_path / "lock", timeout=10):
        pass


def test_no_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        WorkerProcesses(0)
