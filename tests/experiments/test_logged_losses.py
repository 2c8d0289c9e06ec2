"""The losses that are written down do not show that training was interrupted, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adagauss.core.learn import Learner
from adagauss.experiments.run import FileSnapshots
from adagauss.utils.runtime import Runtime
from tests.contracts.toy import taught, toy_tasks

SETTINGS: dict[str, Any] = {"representation.first.epochs": 3, "representation.later.epochs": 3}


class KilledError(BaseException):
    """In the place of a signal: nothing catches it."""


class Killing(FileSnapshots):
    """Saves after every epoch, and is killed after some."""

    def __init__(self, path: Path, epochs: int) -> None:
        super().__init__(path, seconds=0.0)
        self.left = epochs

    def offer(self, *arguments: Any) -> None:
        super().offer(*arguments)
        self.left -= 1
        if self.left == 0:
            raise KilledError


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_losses_of_ewc_are_the_same_after_a_kill(epochs: int, tmp_path: Path) -> None:
    whole = taught("ewc", 1, **SETTINGS)
    whole.save(tmp_path / "first")
    expected = whole.learn(toy_tasks()[2]).history
    assert len(expected) == 3
    assert expected[-1]["ewc"] > 0
    killed = Learner.load(tmp_path / "first", Runtime(snapshots=Killing(tmp_path / "snapshots", epochs)))
    with pytest.raises(KilledError):
        killed.learn(toy_tasks()[2])
    resumed = Learner.load(tmp_path / "first", Runtime(snapshots=FileSnapshots(tmp_path / "snapshots")))
    assert resumed.learn(toy_tasks()[2]).history == expected
