"""One server: the model, the thread that learns, the thread that classifies in batches, and the ONNX export."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import torch
from fastapi import Depends, Request

from adagauss.classifier import IncrementalClassifier
from adagauss.core.predictor import Prediction
from adagauss.data.decode import Pixels
from adagauss.deploy.serve.jobs import Job, Jobs, Skipped
from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.model import Model
from adagauss.deploy.serve.security import Access, ApiError, Limits, Quota
from adagauss.deploy.serve.store import Action, Store
from adagauss.deploy.serve.uploads import Decoder
from adagauss.errors import AdagaussError
from adagauss.utils.files import open_regular
from adagauss.utils.progress import Reporter

BATCH_SIZE = 32
"""Maximum number of pictures in a batch."""

Result = TypeVar("Result")


class ImageClassifier(Protocol[Result]):
    """An immutable classifier, safe to use from several threads."""

    def classify(self, pixels: list[Pixels], unknown: float | None) -> list[Result]:
        """Classify pictures; ``unknown`` is the target false-positive rate, None disables the check."""


@dataclass(frozen=True, eq=False)
class _Waiting(Generic[Result]):
    model: ImageClassifier[Result]
    unknown: float | None
    pixels: list[Pixels]
    answers: asyncio.Future[list[Result]]


class Batcher(Generic[Result]):
    """Classify in one thread, in batches. All pictures of a request use the same model."""

    def __init__(self, waiting: int, metrics: Metrics, batch_size: int = BATCH_SIZE) -> None:
        self._line: deque[_Waiting[Result]] = deque()
        self._pictures = Quota(waiting, "too many pictures are queued")
        self._batch_size = batch_size
        self._metrics = metrics
        # The number of torch's threads is a setting of each thread. For small batches a second one is mostly idle.
        self._pool = ThreadPoolExecutor(1, "classify", torch.set_num_threads, (1,))
        self._worker: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Stop the thread."""
        self._pool.shutdown()

    async def classify(
        self, model: ImageClassifier[Result], pixels: list[Pixels], unknown: float | None
    ) -> list[Result]:
        """Classify pictures with this model; results are in the order of the pictures."""
        loop = asyncio.get_running_loop()
        answers: list[Result] = []
        with self._pictures.use() as take:
            take(len(pixels))
            # Long requests are split, so that short requests of other clients do not wait for them.
            for start in range(0, len(pixels), self._batch_size):
                piece = pixels[start : start + self._batch_size]
                self._line.append(_Waiting(model, unknown, piece, loop.create_future()))
                answer = self._line[-1].answers
                if self._worker is None:
                    self._worker = loop.create_task(self._run())
                answers += await answer
        return answers

    async def _run(self) -> None:
        """Classify until the line is empty."""
        loop = asyncio.get_running_loop()
        try:
            while self._line:
                batch = self._next_batch()
                pixels = [picture for request in batch for picture in request.pixels]
                try:
                    answers = await loop.run_in_executor(self._pool, batch[0].model.classify, pixels, batch[0].unknown)
                except Exception as error:
                    for request in batch:
                        _finish(request.answers, request.answers.set_exception, error)
                    continue
                self._metrics.batches.observe(len(pixels))
                self._metrics.pictures.inc(len(pixels))
                for request in batch:
                    own, answers = answers[: len(request.pixels)], answers[len(request.pixels) :]
                    _finish(request.answers, request.answers.set_result, own)
        finally:
            self._worker = None

    def _next_batch(self) -> list[_Waiting[Result]]:
        """Take the first request and the following ones that fit into the same batch."""
        first = self._line.popleft()
        batch, pictures = [first], len(first.pixels)
        while self._line and self._line[0].model is first.model and self._line[0].unknown == first.unknown:
            pictures += len(self._line[0].pixels)
            if pictures > self._batch_size:
                break
            batch.append(self._line.popleft())
        return batch


def _finish(future: asyncio.Future[Any], end: Callable[[Any], None], value: object) -> None:
    """Finish a future, unless its client has left."""
    if not future.done():
        end(value)


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
        self._cached: tuple[int, BufferedReader] | None = None

    async def file(self) -> BufferedReader:
        """Return the ONNX file of the current model. Readers share it, so its position is undefined."""
        async with self._lock:
            version = self._store.model.version
            if self._cached is not None and self._cached[0] == version:
                return self._cached[1]
            target = self._store.history.export_file
            try:
                await _export(self._store.path, target)
                file = open_regular(target)
            finally:
                target.unlink(missing_ok=True)
            if version == self._store.model.version:  # do not cache classes that were forgotten meanwhile
                self._cached = version, file
            return file

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
        self.batcher: Batcher[Prediction] = Batcher(self.limits.waiting_pictures, self.metrics)
        self.exporter = Exporter(self.store)
        self.decoder = Decoder(self.limits)
        self.uploads = Quota(self.limits.uploads, "too many unfinished uploads from this address", status=429)
        self.metrics.classes.set_function(lambda: len(self.store.model.names))
        self.metrics.version.set_function(lambda: self.store.model.version)
        self.metrics.open_jobs.set_function(lambda: self.jobs.open)

    def change(
        self,
        action: Action,
        summary: str,
        classes: list[str],
        make: Callable[[Model, Reporter], Model],
        *,
        skipped: list[Skipped] | None = None,
        for_good: bool = False,
    ) -> Job:
        """Queue a change of the model; ``classes`` are the names in the summary.

        With ``for_good``, the copies for undo are deleted, and the classes are named nowhere afterwards.
        """

        def work(reporter: Reporter) -> int:
            version = self.store.change(action, summary, classes, lambda model: make(model, reporter))
            return self.drop_copies(classes) if for_good else version

        return self.jobs.submit(action, summary, classes, work, skipped)

    def drop_copies(self, forgotten: list[str]) -> int:
        """Delete the copies for undo, and the names of these classes; return the version of the model."""
        self.exporter.drop()
        self.jobs.blank(self.store.history.finish(forgotten))
        return self.store.model.version

    def stop(self) -> None:
        """Stop all threads. Acknowledged changes are already on disk."""
        self.jobs.stop()
        self.batcher.stop()
        self.decoder.close()
        self.exporter.drop()
        self.store.close()


async def _server(request: Request) -> Server:
    # A coroutine, because FastAPI calls plain functions in another thread, which is slower.
    server: Server = request.app.state.server
    return server


Served = Annotated[Server, Depends(_server)]
"""The server as a dependency of a route."""
