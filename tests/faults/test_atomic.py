"""Files under way: crashes, interrupts and rivals leave the old file or the new one, and nothing else."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch

from adagauss.utils.checkpoint import load_tensors, save_json, save_tensors
from tests.faults.budget import some
from tests.processes import event, started

TENSORS = {"weights": torch.arange(60, dtype=torch.float64)}
FACTS = {"labels": ["ant", "bee"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_tensors(tmp_path / "learner", "learner", TENSORS, FACTS)
    return tmp_path / "learner"


def test_threads_that_save_to_one_path_do_no_harm(tmp_path: Path) -> None:
    target, errors = tmp_path / "learner", list[BaseException]()

    def save(number: int) -> None:
        try:
            for _ in range(20):
                save_tensors(target, "learner", {"same": torch.full((5000,), number)}, {"number": number})
                tensors, facts = load_tensors(target, "learner")
                assert set(tensors["same"].tolist()) == {facts["number"]}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupt_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_tensors(path, "learner", {}, {})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_and_its_folder_are_forced_to_disk_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        forced.append(f"{kind} {(tmp_path / 'file').exists()}")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save_json(tmp_path / "file", {})
    assert forced == ["file False", "folder True"]


def save_for_ever(target: Path, saved_twice: Event) -> None:
    for number in itertools.count():
        save_tensors(target, "learner", {"same": torch.full((2**20,), number)}, {"number": number})
        if number == 1:
            saved_twice.set()


def test_a_process_killed_while_it_saves_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "learner"
    for pause in some((0.01, 0.0, 0.02), 1):  # moments of the save that follows the second one
        saved_twice = event()
        child = started(save_for_ever, target, saved_twice)
        assert saved_twice.wait(60)
        time.sleep(pause)
        child.kill()
        child.join()
        tensors, facts = load_tensors(target, "learner")
        assert bool((tensors["same"] == facts["number"]).all())
    save_tensors(target, "learner", TENSORS, FACTS)
    assert list(tmp_path.iterdir()) == [target], "what the killed processes left was not swept"


def test_temporary_files_without_a_writer_are_removed(tmp_path: Path) -> None:
    names = (".adagauss-left.tmp", ".adagauss-written.tmp", ".other.tmp")
    for name in names:
        (tmp_path / name).write_bytes(b"half a file")
    with (tmp_path / names[1]).open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        save_json(tmp_path / "file", {})
    assert [(tmp_path / name).exists() for name in names] == [False, True, True]


def test_without_locks_only_old_temporary_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    for name, age in (("old", 7200), ("new", 60)):
        (tmp_path / f".adagauss-{name}.tmp").write_bytes(b"half a file")
        os.utime(tmp_path / f".adagauss-{name}.tmp", (time.time() - age,) * 2)
    save_json(tmp_path / "file", {})
    assert not (tmp_path / ".adagauss-old.tmp").exists()
    assert (tmp_path / ".adagauss-new.tmp").exists()


def test_long_names_and_modes(tmp_path: Path) -> None:
    save_tensors(tmp_path / ("n" * 255), "learner", TENSORS, FACTS, mode=0o600)
    load_tensors(tmp_path / ("n" * 255), "learner")
    assert (tmp_path / ("n" * 255)).stat().st_mode & 0o777 == 0o600
