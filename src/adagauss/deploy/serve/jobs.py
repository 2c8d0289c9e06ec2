"""Background jobs: one thread runs all changes in order, while predictions continue."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Literal

import torch
from pydantic import BaseModel, Field, PrivateAttr

from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.security import ApiError
from adagauss.errors import AdagaussError
from adagauss.utils.progress import Advance, Reporter

logger = logging.getLogger(__name__)

State = Literal["waiting", "running", "done", "failed", "cancelled"]
REMEMBERED = 200
"""Number of finished jobs that are listed."""
STAGE_SHARE = 0.8
"""Share of the remaining progress bar that a stage fills, because the number of stages is unknown."""
NOT_NAMED = "classes that were forgotten for good"
NICENESS = 10
NOTES = 20


class Skipped(BaseModel):
    """A picture that could not be used."""

    name: str
    reason: str


class Job(BaseModel):
    """A change of the model. In the state ``done`` it is saved."""

    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    action: str
    summary: str
    state: State = "waiting"
    progress: float = 0.0
    stage: str = ""
    error: str = ""
    version: int | None = None
    """Version of the model after the change."""
    skipped: list[Skipped] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    """Messages of the learner."""
    asked: float = Field(default_factory=time.time)
    seconds: float = 0.0
    _classes: frozenset[str] = PrivateAttr(frozenset())
    """Names of the classes in the summary."""
    _stop: threading.Event = PrivateAttr(default_factory=threading.Event)
    _future: Future[None] = PrivateAttr()

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


Work = Callable[[Reporter], int]
"""Applies and saves a change; returns the new version."""


class StoppedError(Exception):
    """Raised in a cancelled job. A job replaces the model in its last step, so the model is unchanged."""


class JobReporter(Reporter):
    """Record progress and messages in a job. Only the outermost stages move the progress bar."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._depth = 0

    def message(self, text: str) -> None:
        if len(self._job.notes) < NOTES:
            self._job.notes.append(text)

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        self._depth += 1
        outermost, start, done = self._depth == 1, self._job.progress, 0.0

        def advance(note: str = "", step: float = 1.0) -> None:
            nonlocal done
            if self._job._stop.is_set():
                raise StoppedError
            done += step
            if outermost:
                self._job.progress = start + (1.0 - start) * STAGE_SHARE * min(1.0, done / max(total, 1e-9))

        if outermost:
            self._job.stage = title
        try:
            yield advance
        finally:
            self._depth -= 1


class Jobs:
    """A thread that runs jobs in order."""

    def __init__(self, waiting: int, metrics: Metrics) -> None:
        self._most = waiting
        self._metrics = metrics
        self._jobs: dict[str, Job] = {}
        self._pool = ThreadPoolExecutor(1, "learner", initializer=_yield_to_readers)

    def stop(self) -> None:
        """Cancel all jobs and wait for the running one: it ends at its next step, or completes if it is saving."""
        for job in self.all:
            job._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def require_room(self) -> None:
        """Raise if too many jobs are waiting. Called before the pictures of a change are received."""
        if sum(job.state == "waiting" for job in self.all) >= self._most:
            raise ApiError(503, "the job queue is full: try again later", 5.0)

    def submit(
        self, action: str, summary: str, classes: Iterable[str], work: Work, skipped: list[Skipped] | None = None
    ) -> Job:
        """Queue a change; ``classes`` are the names in the summary."""
        self.require_room()
        job = Job(action=action, summary=summary, skipped=skipped or [])
        job._classes = frozenset(classes)
        job._future = self._pool.submit(self._run, job, work)
        self._jobs[job.id] = job
        for old in [job for job in self.all if job.ended][REMEMBERED:]:
            del self._jobs[old.id]
        return job

    def blank(self, classes: Collection[str]) -> None:
        """Remove the texts of jobs that name these classes."""
        for job in self.all:
            if not job._classes.isdisjoint(classes):
                job.summary, job.error, job.notes, job.skipped = NOT_NAMED, "", [], []

    def get(self, name: str) -> Job:
        """Return the job with this id."""
        if name not in self._jobs:
            raise ApiError(404, "job not found: jobs are listed until the server restarts")
        return self._jobs[name]

    def cancel(self, name: str) -> Job:
        """Cancel a job. A job that is already saving completes."""
        job = self.get(name)
        job._stop.set()
        if job._future.cancel():  # it has not started
            job.state = "cancelled"
        return job

    @property
    def all(self) -> list[Job]:
        """Listed jobs, newest first."""
        return list(self._jobs.values())[::-1]

    @property
    def open(self) -> int:
        """Number of jobs that are waiting or running."""
        return sum(not job.ended for job in self.all)

    def _run(self, job: Job, work: Work) -> None:
        started = time.perf_counter()
        state: State = "failed"
        job.state = "running"
        try:
            job.version = work(JobReporter(job))
            job.progress, state = 1.0, "done"
        except StoppedError:
            state = "cancelled"
        except AdagaussError as error:
            job.error = str(error)
        except Exception as error:
            logger.exception("job %s failed", job.action)
            job.error = f"unexpected error ({type(error).__name__}): see the server's log"
        job.seconds = time.perf_counter() - started
        self._metrics.jobs.labels(job.action, state).inc()
        job.state = state  # set last: a reader that sees the final state sees all fields


def _yield_to_readers() -> None:
    """Leave one core for predictions and lower the priority of this thread and its children, where supported."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, own + NICENESS))
