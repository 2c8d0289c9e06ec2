"""A real server in a process of its own, and a client that needs no other package."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from adagauss.deploy.serve import main
from tests.deploy.serve.colours import png
from tests.processes import pipe, started


def serve(model: Path, settings: dict[str, Any], said: Connection) -> None:
    """What `adagauss serve` does, in a process that Ctrl-C reaches; what it says goes into the pipe."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(said.fileno(), sys.stderr.fileno())
    main(model, port=0, **settings)


def teaching(label: str, pictures: list[bytes]) -> bytes:
    """A form that teaches pictures of one class, with the boundary x."""
    parts = [b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\n' + label.encode()]
    head = b'--x\r\nContent-Disposition: form-data; name="pictures"; filename="a.png"\r\n\r\n'
    return b"\r\n".join([*parts, *(head + picture for picture in pictures), b"--x--\r\n"])


class Remote:
    """A server process and a client of it, without any other package."""

    def __init__(self, model: Path, work: Callable[..., None] = serve, **settings: Any) -> None:
        self.said, said = pipe()
        self.process = started(work, model, settings, said)
        said.close()  # the server has its own end, so that reading ends with it
        with os.fdopen(os.dup(self.said.fileno()), encoding="utf-8") as lines:
            greeting = lines.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", greeting)
            assert found, greeting + lines.read()
        self.address = found[0]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: bytes = b"", kind: str = "application/json") -> Any:
        request = urllib.request.Request(self.address + path, body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def teach(self, label: str, colour: str, count: int) -> Any:
        body = teaching(label, [png(colour, 50 + seed) for seed in range(count)])
        return self.post("/api/teach", body, "multipart/form-data; boundary=x")

    def acknowledged(self, job: Any) -> None:
        deadline = time.monotonic() + 60
        while job["state"] != "done":
            assert job["state"] in ("waiting", "running"), job
            assert time.monotonic() < deadline
            time.sleep(0.005)
            job = self.get(f"/api/jobs/{job['id']}")

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.said.close()


@contextmanager
def served(model: Path, **settings: Any) -> Iterator[Remote]:
    """A server that is killed at the end, if it still runs."""
    remote = Remote(model, **settings)
    try:
        yield remote
    finally:
        remote.kill()
