"""A real server in a process of its own, and a client that needs no other package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interrupts import interruptible
from tests.serve.colours import png

PROGRAM = """
import json, pathlib, sys
from adagauss.serve import main
main(pathlib.Path(sys.argv[1]), port=0, **json.loads(sys.argv[2]))
"""


class Remote:
    """A server process and a client of it, without any other package."""

    def __init__(self, model: Path, **settings: Any) -> None:
        command = [sys.executable, "-c", PROGRAM, str(model), json.dumps(settings)]
        self.process = interruptible(command, stderr=subprocess.PIPE)
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
def served(model: Path, **settings: Any) -> Iterator[Remote]:
    """A server that is killed at the end, if it still runs."""
    remote = Remote(model, **settings)
    try:
        yield remote
    finally:
        remote.kill()
