"""Every call that changes the disk fails once, by a full disk or a kill: what is there afterwards is whole."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import AdagaussError, CheckpointError
from adagauss.experiments.config import make_config
from adagauss.experiments.run import FileSnapshots
from adagauss.experiments.runner import run
from adagauss.utils import files
from adagauss.utils.checkpoint import backed_up, backup_of, load_tensors
from adagauss.utils.files import TEMPORARY
from tests.contracts.toy import same, state, taught
from tests.experiments.runs import metrics_of
from tests.faults.budget import TORTURE
from tests.faults.injection import FULL, KILL, Disk, KilledError, every_write, faulty

HOWS = (FULL, KILL)


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a killed process left is old at the next start."""
    monkeypatch.setattr(files, "STALE_SECONDS", -1.0)


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob(TEMPORARY))


def failing(work: Callable[[], object], number: int, how: str) -> BaseException | None:
    """Do some work while call ``number`` fails; returns what was raised."""
    try:
        with faulty(Disk(number, how)):
            work()
    except (AdagaussError, KilledError) as error:  # anything else is not a known error, and fails the test
        return error
    return None


@pytest.mark.parametrize("how", HOWS)
def test_a_saved_learner_is_the_old_or_the_new_one(how: str, tmp_path: Path) -> None:
    path = tmp_path / "learner"
    old, new = taught("adagauss", 1), taught("adagauss", 2)
    old.save(path)
    for number in range(len(every_write(lambda: new.save(path)))):
        old.save(path)
        error = failing(lambda: new.save(path), number, how)
        found = Learner.load(path)
        if error is None:
            assert same(state(found), state(new))
        else:
            # After the rename, only forcing the folder to disk can fail, and the error then says that the file is new.
            assert len(found.classes) in ((2, 3) if how == KILL or "was replaced" in str(error) else (2,))
            assert same(state(found), state(old if len(found.classes) == 2 else new))
        if how == FULL:
            assert leftovers(tmp_path) == [], f"call {number} left something behind"
        old.save(path)  # the next start
        assert leftovers(tmp_path) == [], f"what a kill at call {number} left is not removed"


@pytest.mark.parametrize("links", [True, False], ids=["links", "copies"])
@pytest.mark.parametrize("how", HOWS)
def test_a_backup_is_the_version_before_or_is_not_found(
    how: str, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "learner"
    versions = [taught("adagauss", count) for count in (1, 2, 3)]
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", _no_links)

    def change(version: int) -> None:
        with backed_up(path) as replaced:
            versions[version].save(path)
            replaced()

    def prepare() -> None:
        for file in tmp_path.iterdir():
            file.unlink()
        for version in (0, 1):
            change(version)

    prepare()
    calls = every_write(lambda: change(2))
    assert ("link" in calls) == links
    for number in range(len(calls)):
        prepare()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            error = failing(lambda: change(2), number, how)
        found, backup = Learner.load(path), backup_of(path)
        before = {2: 1, 3: 2, 6: 3}  # classes of each version, and of the one before it
        assert len(found.classes) in ((6,) if error is None else (3, 6))
        if backup is not None:
            assert len(Learner.load(backup).classes) == before[len(found.classes)]
        assert error is not None or backup is not None or "cannot be undone" in str(warned[0].message)
        change(0)
        assert len(list(tmp_path.iterdir())) <= 2, "older versions are removed"


def _no_links(*_: object) -> None:
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def tensors(value: float) -> dict[str, Tensor]:
    return {"weight": torch.full((5,), value), "moment": torch.full((3,), value)}


@pytest.mark.parametrize("how", HOWS)
def test_a_snapshot_is_the_old_or_the_new_one_and_a_full_disk_does_not_stop_training(how: str, tmp_path: Path) -> None:
    def offer(value: float) -> None:
        FileSnapshots(tmp_path / "snapshots", seconds=0.0).offer("task 1: training", tensors(value), {"history": []})

    offer(1.0)
    for number in range(len(every_write(lambda: offer(2.0)))):
        offer(1.0)
        error = failing(lambda: offer(2.0), number, how)
        assert isinstance(error, KilledError) or (how == FULL and error is None)
        found = FileSnapshots(tmp_path / "snapshots").load("task 1: training")
        assert found is not None
        assert same(found[0], tensors(1.0)) or same(found[0], tensors(2.0))
        offer(1.0)
        assert leftovers(tmp_path) == []


SETTINGS = {"backbone.options.filters": 4}
CONFIG = make_config("exact", StreamConfig(dataset="digits", sizes=(2, 1), classes=3), settings=SETTINGS)


@pytest.mark.parametrize("how", HOWS)
def test_a_run_goes_on_to_the_same_numbers_after_every_fault(how: str, tmp_path: Path) -> None:
    digits = load_dataset("digits")

    def work(path: Path, resume: bool = False) -> Any:
        return run(CONFIG, path, resume=resume, dataset=digits)

    calls = every_write(lambda: work(tmp_path / "whole"))
    expected = metrics_of(tmp_path / "whole")
    # A whole run for every call takes minutes; briefly, every eleventh is tried, and all of them with torture.
    points = range(HOWS.index(how) * 5 if TORTURE == 1 else 0, len(calls), 11 if TORTURE == 1 else 1)
    for number in points:
        path = tmp_path / f"run {number}"
        error = failing(lambda path=path: work(path), number, how)  # type: ignore[misc]
        if error is not None:
            with suppress(CheckpointError):  # a run that was not started cannot be resumed
                work(path, resume=True)
            if not (path / "metrics.json").exists():
                work(path)
        assert metrics_of(path) == expected, f"call {number} ({calls[number]})"
        assert leftovers(path) == []
        for file in path.rglob("*.safetensors"):
            load_tensors(file, file.name.partition(".")[0])
