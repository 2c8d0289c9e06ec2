"""Background jobs: one thread runs all changes in order, while predictions continue."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
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
        self.cancelled = threading.Event()

    def message(self, text: str) -> None:
        if len(self._job.notes) < NOTES:
            self._job.notes.append(text)

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        self._depth += 1
        outermost, start, done = self._depth == 1, self._job.progress, 0.0

        def advance(note: str = "", step: float = 1.0) -> None:
            nonlocal done
            if self.cancelled.is_set():
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
    """A thread that runs jobs from a bounded queue."""

    def __init__(self, waiting: int, metrics: Metrics) -> None:
        self._queue: queue.Queue[tuple[Job, JobReporter, Work] | None] = queue.Queue(waiting)
        self._jobs: OrderedDict[str, tuple[Job, JobReporter]] = OrderedDict()
        self._metrics = metrics
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> bool:
        """Cancel all jobs and wait for the thread. Return False if it did not stop within the timeout."""
        with self._lock:
            for _, reporter in self._jobs.values():
                reporter.cancelled.set()
        with suppress(queue.Full):
            self._queue.put(None, timeout=30)
        self._thread.join(timeout=30)
        return not self._thread.is_alive()

    def require_room(self) -> None:
        """Raise if the queue is full. Called before the pictures of a change are received."""
        if self._queue.full():
            raise ApiError(503, "the job queue is full: try again later", 5.0)

    def submit(
        self, action: str, summary: str, classes: Iterable[str], work: Work, skipped: list[Skipped] | None = None
    ) -> Job:
        """Queue a change; ``classes`` are the names in the summary."""
        job = Job(action=action, summary=summary, skipped=skipped or [])
        job._classes = frozenset(classes)
        reporter = JobReporter(job)
        self.require_room()  # only the event loop submits, so put_nowait cannot fail
        with self._lock:
            self._jobs[job.id] = (job, reporter)
            self._queue.put_nowait((job, reporter, work))
            for name in [name for name, (old, _) in self._jobs.items() if old.ended][:-REMEMBERED]:
                del self._jobs[name]
        return job

    def blank(self, classes: Collection[str]) -> None:
        """Remove the texts of jobs that name these classes."""
        for job in self.all:
            if not job._classes.isdisjoint(classes):
                job.summary, job.error, job.notes, job.skipped = NOT_NAMED, "", [], []

    def get(self, name: str) -> Job:
        """Return the job with this id."""
        with self._lock:
            if name in self._jobs:
                return self._jobs[name][0]
        raise ApiError(404, "job not found: jobs are listed until the server restarts")

    def cancel(self, name: str) -> Job:
        """Cancel a job. A job that is already saving completes."""
        job = self.get(name)
        with self._lock:
            self._jobs[name][1].cancelled.set()
            if job.state == "waiting":
                job.state = "cancelled"
        return job

    @property
    def all(self) -> list[Job]:
        """Listed jobs, newest first."""
        with self._lock:
            return [job for job, _ in reversed(self._jobs.values())]

    @property
    def open(self) -> int:
        """Number of jobs that are waiting or running."""
        return sum(not job.ended for job in self.all)

    def _run(self) -> None:
        _yield_to_readers()
        while (item := self._queue.get()) is not None:
            self._execute(*item)

    def _execute(self, job: Job, reporter: JobReporter, work: Work) -> None:
        started = time.perf_counter()
        state: State = "failed"
        with self._lock:
            if reporter.cancelled.is_set():
                job.state = "cancelled"
                return
            job.state = "running"
        try:
            job.version = work(reporter)
            job.progress, state = 1.0, "done"
        except StoppedError:
            state = "cancelled"
        except AdagaussError as error:
            job.error = str(error)
        except Exception as error:
            logger.exception("job %s failed", job.action)
            job.error = f"unexpected error ({type(error).__name__}): see the server's log"
        job.seconds = time.perf_counter() - started
        self._metrics.job(job.action, state)
        job.state = state  # set last: a reader that sees the final state sees all fields


def _yield_to_readers() -> None:
    """Leave one core for predictions and lower the priority of this thread and its children, where supported."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, own + NICENESS))
