"""One server: the model, the thread that learns, the thread that classifies, and the threads that decode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated

import torch
from fastapi import Depends, Request

from adagauss.core.predictor import Prediction
from adagauss.data.decode import Pixels
from adagauss.deploy.serve.jobs import Job, Jobs, Skipped
from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.model import Model
from adagauss.deploy.serve.security import Access, Limits, Quota
from adagauss.deploy.serve.store import Action, Store
from adagauss.deploy.serve.uploads import Decoder
from adagauss.utils.progress import Reporter

AT_ONCE = 32
"""Pictures that are classified together. Longer requests are split, so that short ones do not wait for them."""


@dataclass
class Server:
    """A model with its threads: one learns, one classifies, a few decode."""

    store: Store
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.limits.waiting_jobs, self.metrics)
        self.decoder = Decoder(self.limits)
        self.uploads = Quota(self.limits.uploads, "too many unfinished uploads from this address", status=429)
        self._waiting = Quota(self.limits.waiting_pictures, "too many pictures are queued")
        # The number of torch's threads is a setting of each thread. For few pictures a second one is mostly idle.
        self._classifying = ThreadPoolExecutor(1, "classify", torch.set_num_threads, (1,))
        self.metrics.classes.set_function(lambda: len(self.store.model.names))
        self.metrics.version.set_function(lambda: self.store.model.version)
        self.metrics.open_jobs.set_function(lambda: self.jobs.open)

    async def classify(self, model: Model, pixels: list[Pixels], unknown: float | None) -> list[Prediction]:
        """Classify the pictures of a request, all with this model."""
        loop, answers = asyncio.get_running_loop(), list[Prediction]()
        with self._waiting.use() as take:
            take(len(pixels))
            for start in range(0, len(pixels), AT_ONCE):
                piece = pixels[start : start + AT_ONCE]
                answers += await loop.run_in_executor(self._classifying, model.classify, piece, unknown)
        self.metrics.pictures.inc(len(pixels))
        return answers

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
        self.jobs.blank(self.store.finish(forgotten))
        return self.store.model.version

    def stop(self) -> None:
        """Stop all threads. Acknowledged changes are already on disk."""
        self.jobs.stop()
        self._classifying.shutdown()
        self.decoder.close()
        self.store.close()


async def _server(request: Request) -> Server:
    # A coroutine, because FastAPI calls plain functions in another thread, which is slower.
    server: Server = request.app.state.server
    return server


Served = Annotated[Server, Depends(_server)]
"""The server as a dependency of a route."""
