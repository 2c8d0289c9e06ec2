"""Predictions in small batches: pictures that arrive while others are classified are classified together next."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from adagauss.data.decode import Pixels
from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.security import ApiError

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
