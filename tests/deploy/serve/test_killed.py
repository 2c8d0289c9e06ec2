"""A real server process, killed without warning: what was acknowledged is there, and nothing is half there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from adagauss import IncrementalClassifier
from tests.deploy.serve.colours import png
from tests.deploy.serve.remote import Remote, served


def classes(model: Path) -> list[str]:
    names: list[str] = IncrementalClassifier.load(model).classes_.tolist()
    return names


def test_what_was_acknowledged_survives_a_kill_and_can_be_undone_after_it(model: Path, saved: Path) -> None:
    with served(model) as remote:
        remote.acknowledged(remote.teach("blue", "blue", 8))
        remote.kill()
    assert classes(model) == ["blue", "green", "red"]
    with served(model) as remote:
        picture = remote.post("/api/predict", png("blue", 3), "image/png")
        assert picture["predictions"][0]["label"] == "blue"
        assert remote.get("/api/history")[0]["summary"] == "8 of blue"
        remote.acknowledged(remote.post("/api/undo"))
        remote.kill()
    assert model.read_bytes() == saved.read_bytes()


def test_killed_while_it_learns_the_old_state_is_whole(model: Path, saved: Path) -> None:
    with served(model) as remote:
        job = remote.teach("blue", "blue", 60)
        assert job["state"] != "done"
        remote.kill()
    # The moment is not known: the change is there whole, or not at all. It was not acknowledged either way.
    assert classes(model) in (["green", "red"], ["blue", "green", "red"])
    with served(model) as remote:
        taught = any(entry["action"] == "teach" for entry in remote.get("/api/history"))
        assert taught == ("blue" in classes(model))
        assert (model.read_bytes() == saved.read_bytes()) != taught
        remote.acknowledged(remote.teach("grey", "grey", 6))
    assert "grey" in classes(model)


@pytest.mark.skipif(not hasattr(signal, "SIGTERM") or sys.platform == "win32", reason="signals of Unix")
def test_told_to_stop_the_server_ends_by_itself(model: Path) -> None:
    with served(model) as remote:
        assert remote.process.pid is not None
        os.kill(remote.process.pid, signal.SIGINT)
        remote.process.join(timeout=30)
        assert remote.process.exitcode is not None
        again = Remote(model)  # the file is free again
        again.kill()
