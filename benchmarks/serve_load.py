"""Predictions a second of a server on this machine, and how long they take, while a class is being taught.

    python -m benchmarks.serve_load                      # a small model: image patches of 32 × 32 pixels
    python -m benchmarks.serve_load --rate 400           # more requests a second
    python -m benchmarks.serve_load --idle               # nothing is taught meanwhile
    python -m benchmarks.serve_load --silent 200         # 200 more connections are open and send nothing

Requests are sent at a fixed rate whether or not earlier ones were answered, over a few connections; the time of one is
counted from the moment it was due. The client runs on the same cores as the server. The CPU time of the server depends
less on other programs of the machine than these times; only with --idle is all of it spent on predictions.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from adagauss import IncrementalClassifier

SIDE = 32
CLASSES = 10
PROGRAM = "import sys, pathlib, adagauss.deploy.serve as s; s.main(pathlib.Path(sys.argv[1]), port=0)"


@dataclass
class Load:
    """What was measured."""

    seconds: list[float] = field(default_factory=list)
    cpu: float = 0.0
    """CPU seconds of the server."""
    errors: int = 0
    taught: int = 0
    while_teaching: int = 0
    """Predictions that were answered while a class was being taught."""


class Connection:
    """One kept connection that speaks as much HTTP as is needed: client libraries take more time than the server."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def request(self, method: str, path: str, body: bytes = b"", kind: str = "image/png") -> tuple[int, Any]:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
        self._writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
        content = await self._reader.readexactly(int(length[1]) if length else 0)
        return int(answer.split()[1]), json.loads(content) if content[:1] == b"{" else content.decode()


def picture(kind: int, seed: int) -> bytes:
    random = np.random.default_rng((kind, seed))
    stripes = np.sin(np.arange(SIDE) * (0.2 + 0.1 * kind))[:, None, None]
    pixels = 128 + 60 * stripes + random.normal(0, 20, (SIDE, SIDE, 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def small_model(path: Path) -> None:
    images, labels = [], []
    for kind in range(CLASSES):
        for seed in range(30):
            images.append(np.asarray(Image.open(io.BytesIO(picture(kind, seed)))))
            labels.append(f"stripes {kind}")
    classifier = IncrementalClassifier("analytic-patches", settings={"backbone.options.filters": 50})
    classifier.partial_fit(np.stack(images), labels).save(path)


def form(pictures: int) -> bytes:
    parts = [b'--x\r\nContent-Disposition: form-data; name="label"\r\n\r\nnew']
    head = b'--x\r\nContent-Disposition: form-data; name="pictures"; filename="a.png"\r\n\r\n'
    parts += [head + picture(20, seed) for seed in range(pictures)]
    return b"\r\n".join([*parts, b"--x--\r\n"])


async def teach(port: int, load: Load, pictures: int, stop: asyncio.Event, busy: asyncio.Event) -> None:
    """Teach a class and undo it, again and again."""
    connection = await Connection(port).open()
    content = form(pictures)
    while not stop.is_set():
        for path, body, kind in (
            ("/api/teach", content, "multipart/form-data; boundary=x"),
            ("/api/undo", b"", "application/json"),
        ):
            busy.set()
            status, job = await connection.request("POST", path, body, kind)
            while status < 300 and job["state"] in ("waiting", "running"):
                await asyncio.sleep(0.05)
                status, job = await connection.request("GET", f"/api/jobs/{job['id']}")
            busy.clear()
            if status >= 300 or job["state"] != "done":
                load.errors += 1
                sys.stderr.write(f"{path}: {status} {job}\n")
                await asyncio.sleep(1)
            await asyncio.sleep(0.25)  # the limit of changes from one address
        load.taught += 1


async def predict(port: int, load: Load, rate: float, seconds: float, connections: int, busy: asyncio.Event) -> None:
    """Send predictions at a fixed rate."""
    pictures = [picture(kind, 1000 + seed) for kind in range(CLASSES) for seed in range(5)]
    due = iter(range(int(rate * seconds)))
    started = time.perf_counter()

    async def send() -> None:
        connection = await Connection(port).open()
        for number in due:
            moment = started + number / rate
            await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            status, _ = await connection.request("POST", "/api/predict?top=3", pictures[number % len(pictures)])
            load.seconds.append(time.perf_counter() - moment)
            load.errors += status != 200
            load.while_teaching += busy.is_set()

    await asyncio.gather(*(send() for _ in range(connections)))


async def stay_silent(port: int) -> None:
    """Keep one connection open that sends nothing; the server closes it after some seconds."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()


async def cpu_seconds(port: int) -> float:
    """CPU time of the server since its start."""
    _, text = await (await Connection(port).open()).request("GET", "/api/metrics")
    found = re.search(r"^process_cpu_seconds_total (.*)", text, re.MULTILINE)
    assert found, text
    return float(found[1])


async def measure(port: int, options: argparse.Namespace) -> tuple[Load, float]:
    load, stop, busy = Load(), asyncio.Event(), asyncio.Event()
    silent = [asyncio.create_task(stay_silent(port)) for _ in range(options.silent)]
    await predict(port, Load(), options.rate, 1.0, options.connections, busy)  # the first ones only warm up
    teaching = None if options.idle else asyncio.create_task(teach(port, load, options.pictures, stop, busy))
    started, before = time.perf_counter(), await cpu_seconds(port)
    await predict(port, load, options.rate, options.seconds, options.connections, busy)
    took, load.cpu = time.perf_counter() - started, await cpu_seconds(port) - before
    stop.set()
    if teaching is not None:
        await teaching
    assert not any(task.done() for task in silent)
    for task in silent:
        task.cancel()
    return load, took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--pictures", type=int, default=200, help="pictures of the class that is taught")
    parser.add_argument("--idle", action="store_true", help="teach nothing meanwhile")
    parser.add_argument("--silent", type=int, default=0, help="open connections that send nothing")
    parser.add_argument("--model", type=Path, help="a copy of this model instead of the small one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        if options.model:
            path.write_bytes(options.model.read_bytes())
        else:
            small_model(path)
        server = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            greeting = server.stderr.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", greeting)
            assert found, greeting
            load, took = asyncio.run(measure(int(found[1]), options))
        finally:
            server.terminate()
            server.wait()
    p50, p99 = np.percentile(load.seconds, [50, 99]) * 1000
    print(
        f"{len(load.seconds) / took:.0f} predictions/s at a target rate of {options.rate:.0f}/s for {took:.0f} s, "
        f"{load.while_teaching} of {len(load.seconds)} while a change was at work ({load.taught} taught and undone): "
        f"median {p50:.0f} ms, p99 {p99:.0f} ms, longest {max(load.seconds) * 1000:.0f} ms, {load.errors} errors; "
        f"{load.cpu / len(load.seconds) * 1000:.2f} ms of the server's CPU time per prediction; "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    return 1 if load.errors else 0


if __name__ == "__main__":
    sys.exit(main())
