"""One server: the model, the thread that learns, the thread that classifies in batches, and the ONNX export."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import torch
from fastapi import Depends, Request

from adagauss.classifier import IncrementalClassifier
from adagauss.data.decode import Pixels
from adagauss.deploy.serve import model as models
from adagauss.deploy.serve.jobs import Jobs
from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.security import Access, ApiError, Limits
from adagauss.deploy.serve.store import Store
from adagauss.deploy.serve.uploads import Decoder
from adagauss.errors import AdagaussError
from adagauss.utils.files import open_regular

TOGETHER = 32
"""Most pictures in a batch."""

Answer = TypeVar("Answer")


class Classifies(Protocol[Answer]):
    """What never changes, so that threads may use it at the same time."""

    def classify(self, pixels: list[Pixels], unknown: float | None) -> list[Answer]:
        """One answer per picture; ``unknown`` is the wished rate of false alarms, None for no check."""


@dataclass
class _Request(Generic[Answer]):
    model: Classifies[Answer]
    unknown: float | None
    pixels: list[Pixels]
    future: asyncio.Future[list[Answer]]
    loop: asyncio.AbstractEventLoop

    @property
    def key(self) -> tuple[int, float | None]:
        return id(self.model), self.unknown

    def answer(self, answers: list[Answer]) -> None:
        self.loop.call_soon_threadsafe(_unless_done, self.future, self.future.set_result, answers)

    def fail(self, error: Exception) -> None:
        self.loop.call_soon_threadsafe(_unless_done, self.future, self.future.set_exception, error)


class Batcher(Generic[Answer]):
    """A thread that classifies. All pictures of one request are classified by the same model."""

    def __init__(self, waiting: int, metrics: Metrics, together: int = TOGETHER) -> None:
        self._queue: queue.SimpleQueue[_Request[Answer] | None] = queue.SimpleQueue()
        self._together = together
        self._most = waiting
        self._waiting = 0
        self._stopped = False
        self._metrics = metrics
        self._thread = threading.Thread(target=self._run, name="classify", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after what is in line."""
        self._stopped = True
        self._queue.put(None)
        self._thread.join(timeout=10)

    async def ask(self, model: Classifies[Answer], pixels: list[Pixels], unknown: float | None) -> list[Answer]:
        """The answers of this model for some pictures, in order."""
        if self._stopped:
            raise ApiError(503, "the server is being stopped: try again when it is back", 5.0)
        if self._waiting + len(pixels) > self._most:
            raise ApiError(503, "too many pictures are waiting to be classified: try again", 1.0)
        loop = asyncio.get_running_loop()
        # Long requests go in pieces, so that short ones of others get between them.
        pieces = [pixels[start : start + self._together] for start in range(0, len(pixels), self._together)]
        futures = []
        self._waiting += len(pixels)
        try:
            for piece in pieces:
                future: asyncio.Future[list[Answer]] = loop.create_future()
                futures.append(future)
                self._queue.put(_Request(model, unknown, piece, future, loop))
                if len(pieces) > 1:
                    await future
            return [answer for future in futures for answer in await future]
        finally:
            self._waiting -= len(pixels)

    def _run(self) -> None:
        # This thread's own number: for a few pictures a second one mostly waits, and takes a core from everybody else.
        torch.set_num_threads(1)
        line: deque[_Request[Answer]] = deque()
        ended = False
        while line or not ended:
            while not ended and (not line or not self._queue.empty()):
                request = self._queue.get()
                if request is None:
                    ended = True
                else:
                    line.append(request)
            if line:
                self._classify(_batch(line, self._together))

    def _classify(self, batch: list[_Request[Answer]]) -> None:
        pixels = [picture for request in batch for picture in request.pixels]
        try:
            answers = batch[0].model.classify(pixels, batch[0].unknown)
        except Exception as error:
            for request in batch:
                request.fail(error)
            return
        self._metrics.batch(len(pixels))
        start = 0
        for request in batch:
            request.answer(answers[start : start + len(request.pixels)])
            start += len(request.pixels)


def _unless_done(future: asyncio.Future[Any], end: Callable[[Any], None], value: object) -> None:
    """End a future, unless whoever waited for it has gone away."""
    if not future.done():
        end(value)


def _batch(line: deque[_Request[Answer]], most: int) -> list[_Request[Answer]]:
    """Takes the first request in line, and those after it that can be classified with it."""
    batch = [line.popleft()]
    pictures = len(batch[0].pixels)
    while line and line[0].key == batch[0].key and pictures + len(line[0].pixels) <= most:
        batch.append(line.popleft())
        pictures += len(batch[-1].pixels)
    return batch


EXPORT_SECONDS = 600.0


class Exporter:
    """Exports one version once, and keeps the file for the next who asks.

    The file has no name any more once it is opened: the system removes it with the last who reads it, also where this
    process is killed, and nothing of a class that is forgotten later stays on disk.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._version = -1
        self._kept: BufferedReader | None = None

    async def file(self) -> BufferedReader:
        """The ONNX file of the present model; others read it as well, so its position means nothing."""
        async with self._lock:
            version, kept = self._store.snapshot.version, self._kept
            if kept is None or version != self._version:
                target = self._store.history.export_file
                try:
                    await _export(self._store.path, target)
                    kept = open_regular(target)
                finally:
                    target.unlink(missing_ok=True)
                if version == self._store.snapshot.version:  # otherwise what was forgotten meanwhile would be kept
                    self._kept, self._version = kept, version
            return kept

    def drop(self) -> None:
        """Keep nothing; those who read it go on."""
        self._kept = None


async def _export(model: Path, target: Path) -> None:
    # -P keeps Python from importing modules of the current folder.
    program = f"import sys; from {__name__} import export_file; sys.exit(export_file(*sys.argv[1:]))"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", program, str(model), str(target), stderr=asyncio.subprocess.PIPE
    )
    try:
        _, said = await asyncio.wait_for(child.communicate(), EXPORT_SECONDS)
    except TimeoutError:
        raise ApiError(504, f"the export took longer than {EXPORT_SECONDS:g} seconds") from None
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        raise ApiError(409 if child.returncode == 2 else 500, lines[-1] if lines else "the export failed")


def export_file(model: str, target: str) -> int:
    """Export a saved classifier; return the exit status of the process."""
    try:
        IncrementalClassifier.load(model, device="cpu").export(target)
    except (AdagaussError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


@dataclass
class Server:
    """One model and those who work on it: one thread that learns, one that classifies, a few that decode."""

    store: Store
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)
    decoder: Decoder = field(default_factory=Decoder)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.limits.waiting_jobs, self.metrics)
        self.batcher: Batcher[models.Answer] = Batcher(self.limits.waiting_pictures, self.metrics)
        self.exporter = Exporter(self.store)
        self.uploads = asyncio.Semaphore(self.limits.uploads)
        self._started = False

    def start(self) -> None:
        """Load the model and begin to work; a second call does nothing."""
        if self._started:
            return
        self.store.open()
        self._started = True
        self.jobs.start()
        self.batcher.start()

    def stop(self) -> None:
        """End all work; what was acknowledged is on disk already."""
        ended = self.jobs.stop()
        self.batcher.stop()
        self.decoder.close()
        self.exporter.drop()
        if ended:  # otherwise the model stays locked until the process ends
            self.store.close()


async def _server(request: Request) -> Server:
    # Not a plain function: FastAPI would call it in another thread, which takes longer than it does.
    server: Server = request.app.state.server
    return server


Served = Annotated[Server, Depends(_server)]
"""The server, as an argument of a route."""
