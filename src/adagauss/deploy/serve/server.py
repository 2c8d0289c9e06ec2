"""All that a running server consists of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from adagauss.deploy.serve.batching import Batcher
from adagauss.deploy.serve.exporting import Exporter
from adagauss.deploy.serve.jobs import Jobs
from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.model import Answer
from adagauss.deploy.serve.security import Access, Limits
from adagauss.deploy.serve.store import Store
from adagauss.deploy.serve.uploads import Decoder


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
        self.batcher: Batcher[Answer] = Batcher(self.limits.waiting_pictures, self.metrics)
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
