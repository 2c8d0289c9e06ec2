"""Pictures made to exhaust a server, which the system would end at its limits of memory and CPU time."""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from PIL import Image

from tests.deploy.serve.colours import png
from tests.deploy.serve.remote import Remote, serve, teaching
from tests.deploy.serve.test_slow_clients import FORM, HEAD, opened, scans

MEMORY = 3 * 2**29
"""Bytes of address space, in addition to those of a server that has imported its modules."""
CPU_SECONDS = 30
"""In addition to its start; decoding in this process has it all, each child process as much again."""


def serve_within_limits(model: Path, settings: dict[str, Any], said: Connection) -> None:
    import resource

    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    seconds = int(process_time()) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(model, settings, said)


def flat(kind: str, side: int, mode: str = "L", **options: Any) -> bytes:
    """A small file of many equal pixels."""
    file = io.BytesIO()
    Image.new(mode, (side, side)).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space")
def test_bombs_and_silent_clients_take_little_memory_and_time(model: Path) -> None:
    bombs = {
        "too many pixels": flat("PNG", 13_000, "1"),
        "most pixels": flat("PNG", 8_000, "P"),
        "most pixels, packed": flat("TIFF", 8_000, compression="tiff_lzw"),
        "too many scans": scans(1500, 500, levels=1),
        "most scans": scans(80, 500, levels=1),
        "most scans of many pixels": scans(90, 4_000, levels=1),
    }
    remote = Remote(model, serve_within_limits)
    try:
        port = int(remote.address.rpartition(":")[2])
        with ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(opened(port))
            for _ in range(20):
                stack.enter_context(opened(port, HEAD % (b"/api/predict", b"image/png") + bytes(50_000)))
            problems = {}
            for name, content in bombs.items():
                (answer,) = remote.post("/api/predict", content, "image/png")["predictions"]
                problems[name] = answer["problem"]
            pictures = [bombs["too many pixels"], bombs["too many scans"], png("blue")]
            job = remote.post("/api/teach", teaching("blue", pictures), FORM.decode())
            assert len(job["skipped"]) == 2
            remote.acknowledged(job)
            assert remote.post("/api/predict", png("red"), "image/png")["predictions"][0]["label"] == "red"
        assert "pixels" in problems.pop("too many pixels")
        assert all("scans" in problems.pop(name) for name in ("too many scans", "most scans of many pixels"))
        assert problems["most scans"] == ""
    finally:
        remote.kill()
