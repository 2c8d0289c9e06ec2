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
from adagauss.deploy.serve.jobs import Jobs
from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.model import Answer
from adagauss.deploy.serve.security import Access, ApiError, Limits, Slots
from adagauss.deploy.serve.store import Store
from adagauss.deploy.serve.uploads import Decoder
from adagauss.errors import AdagaussError
from adagauss.utils.files import open_regular

BATCH_SIZE = 32
"""Maximum number of pictures in a batch."""

Result = TypeVar("Result")


class ImageClassifier(Protocol[Result]):
    """An immutable classifier, safe to use from several threads."""

    def classify(self, pixels: list[Pixels], unknown: float | None) -> list[Result]:
        """Classify pictures; ``unknown`` is the target false-positive rate, None disables the check."""


@dataclass
class _Request(Generic[Result]):
    model: ImageClassifier[Result]
    unknown: float | None
    pixels: list[Pixels]
    future: asyncio.Future[list[Result]]
    loop: asyncio.AbstractEventLoop

    @property
    def key(self) -> tuple[int, float | None]:
        return id(self.model), self.unknown

    def answer(self, answers: list[Result]) -> None:
        self.loop.call_soon_threadsafe(_finish, self.future, self.future.set_result, answers)

    def fail(self, error: Exception) -> None:
        self.loop.call_soon_threadsafe(_finish, self.future, self.future.set_exception, error)


class Batcher(Generic[Result]):
    """Classify in one thread, in batches. All pictures of a request use the same model."""

    def __init__(self, waiting: int, metrics: Metrics, batch_size: int = BATCH_SIZE) -> None:
        self._queue: queue.SimpleQueue[_Request[Result] | None] = queue.SimpleQueue()
        self._batch_size = batch_size
        self._most = waiting
        self._waiting = 0
        self._stopped = False
        self._metrics = metrics
        self._thread = threading.Thread(target=self._run, name="classify", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the queued requests."""
        self._stopped = True
        self._queue.put(None)
        self._thread.join(timeout=10)

    async def classify(
        self, model: ImageClassifier[Result], pixels: list[Pixels], unknown: float | None
    ) -> list[Result]:
        """Classify pictures with this model; results are in the order of the pictures."""
        if self._stopped:
            raise ApiError(503, "the server is being stopped: try again after its restart", 5.0)
        if self._waiting + len(pixels) > self._most:
            raise ApiError(503, "too many pictures are queued: try again", 1.0)
        loop = asyncio.get_running_loop()
        # Long requests are split, so that short requests of other clients do not wait for them.
        pieces = [pixels[start : start + self._batch_size] for start in range(0, len(pixels), self._batch_size)]
        futures = []
        self._waiting += len(pixels)
        try:
            for piece in pieces:
                future: asyncio.Future[list[Result]] = loop.create_future()
                futures.append(future)
                self._queue.put(_Request(model, unknown, piece, future, loop))
                if len(pieces) > 1:
                    await future
            return [answer for future in futures for answer in await future]
        finally:
            self._waiting -= len(pixels)

    def _run(self) -> None:
        # Per-thread setting: for small batches a second thread is mostly idle but occupies a core.
        torch.set_num_threads(1)
        line: deque[_Request[Result]] = deque()
        ended = False
        while line or not ended:
            while not ended and (not line or not self._queue.empty()):
                request = self._queue.get()
                if request is None:
                    ended = True
                else:
                    line.append(request)
            if line:
                self._classify(_batch(line, self._batch_size))

    def _classify(self, batch: list[_Request[Result]]) -> None:
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


def _finish(future: asyncio.Future[Any], end: Callable[[Any], None], value: object) -> None:
    """Finish a future, unless it was cancelled."""
    if not future.done():
        end(value)


def _batch(line: deque[_Request[Result]], most: int) -> list[_Request[Result]]:
    """Pop the first request and the following ones that fit into the same batch."""
    batch = [line.popleft()]
    pictures = len(batch[0].pixels)
    while line and line[0].key == batch[0].key and pictures + len(line[0].pixels) <= most:
        batch.append(line.popleft())
        pictures += len(batch[-1].pixels)
    return batch


EXPORT_SECONDS = 600.0


class Exporter:
    """Export each version once, and cache the open file.

    Export runs in a subprocess, because tracing changes global state of torch. The file is unlinked as soon as it is
    open: the system frees it with its last reader, even if this process is killed. So no data of a class that is
    forgotten later stays on disk.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._version = -1
        self._cached: BufferedReader | None = None

    async def file(self) -> BufferedReader:
        """Return the ONNX file of the current model. Readers share it, so its position is undefined."""
        async with self._lock:
            version, cached = self._store.snapshot.version, self._cached
            if cached is None or version != self._version:
                target = self._store.history.export_file
                try:
                    await _export(self._store.path, target)
                    cached = open_regular(target)
                finally:
                    target.unlink(missing_ok=True)
                if version == self._store.snapshot.version:  # do not cache classes that were forgotten meanwhile
                    self._cached, self._version = cached, version
            return cached

    def drop(self) -> None:
        """Clear the cache. Running downloads are not affected."""
        self._cached = None


async def _export(model: Path, target: Path) -> None:
    # -P keeps Python from importing modules of the current folder.
    program = f"import sys; from {__name__} import export_file; sys.exit(export_file(*sys.argv[1:]))"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", program, str(model), str(target), stderr=asyncio.subprocess.PIPE
    )
    try:
        _, stderr = await asyncio.wait_for(child.communicate(), EXPORT_SECONDS)
    except TimeoutError:
        raise ApiError(504, f"the export took longer than {EXPORT_SECONDS:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode:
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
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
    """A model with its threads: one learns, one classifies, a few decode."""

    store: Store
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.limits.waiting_jobs, self.metrics)
        self.batcher: Batcher[Answer] = Batcher(self.limits.waiting_pictures, self.metrics)
        self.exporter = Exporter(self.store)
        self.decoder = Decoder(self.limits)
        self.uploads = Slots(self.limits.uploads)
        self._started = False

    def start(self) -> None:
        """Load the model and start the threads. A second call has no effect."""
        if self._started:
            return
        self.store.open()
        self._started = True
        self.jobs.start()
        self.batcher.start()

    def stop(self) -> None:
        """Stop all threads. Acknowledged changes are already on disk."""
        ended = self.jobs.stop()
        self.batcher.stop()
        self.decoder.close()
        self.exporter.drop()
        if ended:  # a running job keeps the model locked until the process ends
            self.store.close()


async def _server(request: Request) -> Server:
    # A coroutine, because FastAPI calls plain functions in another thread, which is slower.
    server: Server = request.app.state.server
    return server


Served = Annotated[Server, Depends(_server)]
"""The server as a dependency of a route."""
