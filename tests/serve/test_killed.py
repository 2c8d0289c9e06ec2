"""A real server process, killed without warning: what was acknowledged is there, and nothing is half there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from adagauss import IncrementalClassifier
from tests.serve.conftest import png

PROGRAM = "import sys, pathlib, adagauss.serve as s; s.main(pathlib.Path(sys.argv[1]), port=0)"


class Remote:
    """A server process and a client of it, without any other package."""

    def __init__(self, model: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(model)], stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        assert self.process.stderr is not None
        greeting = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", greeting)
        assert found, greeting + self.process.stderr.read()
        self.address = found[0]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: bytes = b"", kind: str = "application/json") -> Any:
        request = urllib.request.Request(self.address + path, body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def teach(self, label: str, colour: str, count: int) -> Any:
        parts = [b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\n' + label.encode()]
        for seed in range(count):
            head = b'--x\r\nContent-Disposition: form-data; name="pictures"; filename="a.png"\r\n\r\n'
            parts.append(head + png(colour, 50 + seed))
        return self.post("/api/teach", b"\r\n".join([*parts, b"--x--\r\n"]), "multipart/form-data; boundary=x")

    def acknowledged(self, job: Any) -> None:
        deadline = time.monotonic() + 60
        while job["state"] != "done":
            assert job["state"] in ("waiting", "running"), job
            assert time.monotonic() < deadline
            time.sleep(0.005)
            job = self.get(f"/api/jobs/{job['id']}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def served(model: Path) -> Iterator[Remote]:
    remote = Remote(model)
    try:
        yield remote
    finally:
        remote.kill()


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
        remote.process.send_signal(signal.SIGINT)
        remote.process.wait(timeout=30)
        again = Remote(model)  # the file is free again
        again.kill()
