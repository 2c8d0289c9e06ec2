"""Changes as background jobs: one thread carries them out in order, while predictions go on."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import torch
from pydantic import BaseModel, Field

from adagauss.deploy.serve.metrics import Metrics
from adagauss.deploy.serve.security import ApiError
from adagauss.errors import AdagaussError
from adagauss.utils.progress import Advance, Reporter

logger = logging.getLogger(__name__)

State = Literal["waiting", "running", "done", "failed", "cancelled"]
REMEMBERED = 200
"""Finished jobs that can still be asked for."""
STAGE_SHARE = 0.8
"""Part of the remaining bar that a stage fills: how many stages follow is not known."""
NICENESS = 10
NOTES = 20


class Skipped(BaseModel):
    """A picture that could not be used."""

    name: str
    reason: str


class Job(BaseModel):
    """A change: asked for, at work, or ended. ``done`` means that it is saved."""

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
    """What the learner had to say about it."""
    asked: float = Field(default_factory=time.time)
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


Work = Callable[[Reporter], int]
"""Carries a change out and saves it; returns the version after it."""


class StoppedError(Exception):
    """Raised within a job that shall stop; what it changes is swapped at the end only, so nothing has changed."""


class JobReporter(Reporter):
    """Writes the progress of a job into it; the outermost stages fill the bar one after another."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._depth = 0
        self.cancelled = threading.Event()

    def message(self, text: str) -> None:
        if len(self._job.notes) < NOTES:
            self._job.notes.append(text)

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "") -> Iterator[Advance]:
        self._depth += 1
        outermost, begun, done = self._depth == 1, self._job.progress, 0.0

        def advance(note: str = "", step: float = 1.0) -> None:
            nonlocal done
            if self.cancelled.is_set():
                raise StoppedError
            done += step
            if outermost:
                self._job.progress = begun + (1.0 - begun) * STAGE_SHARE * min(1.0, done / max(total, 1e-9))

        if outermost:
            self._job.stage = title
        try:
            yield advance
        finally:
            self._depth -= 1


class Jobs:
    """The one who learns: a thread, and a short line of jobs before it."""

    def __init__(self, waiting: int, metrics: Metrics) -> None:
        self._queue: queue.Queue[tuple[Job, JobReporter, Work] | None] = queue.Queue(waiting)
        self._jobs: OrderedDict[str, tuple[Job, JobReporter]] = OrderedDict()
        self._metrics = metrics
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> bool:
        """Cancel what waits and what is at work, and wait for the end of it; False if it did not come in time."""
        with self._lock:
            for _, reporter in self._jobs.values():
                reporter.cancelled.set()
        with suppress(queue.Full):
            self._queue.put(None, timeout=30)
        self._thread.join(timeout=30)
        return not self._thread.is_alive()

    def require_room(self) -> None:
        """Refuse a change, before its pictures are received, if too many wait already."""
        if self._queue.full():
            raise ApiError(503, "other changes are waiting already: try again when they are done", 5.0)

    def submit(self, action: str, summary: str, work: Work, skipped: list[Skipped] | None = None) -> Job:
        """Put a change in line."""
        job = Job(action=action, summary=summary, skipped=skipped or [])
        reporter = JobReporter(job)
        self.require_room()  # only the server's event loop submits, so there is still room in the next line
        with self._lock:
            self._jobs[job.id] = (job, reporter)
            self._queue.put_nowait((job, reporter, work))
            for name in [name for name, (old, _) in self._jobs.items() if old.ended][:-REMEMBERED]:
                del self._jobs[name]
        return job

    def get(self, name: str) -> Job:
        """A job by its id."""
        with self._lock:
            if name in self._jobs:
                return self._jobs[name][0]
        raise ApiError(404, "there is no such job; jobs are forgotten when the server restarts")

    def cancel(self, name: str) -> Job:
        """Ask a job to stop; one that already saves its change completes it."""
        job = self.get(name)
        with self._lock:
            self._jobs[name][1].cancelled.set()
            if job.state == "waiting":
                job.state = "cancelled"
        return job

    @property
    def all(self) -> list[Job]:
        """Jobs that are not forgotten yet, the newest first."""
        with self._lock:
            return [job for job, _ in reversed(self._jobs.values())]

    @property
    def open(self) -> int:
        """How many jobs have not ended."""
        return sum(not job.ended for job in self.all)

    def _run(self) -> None:
        _yield_to_readers()
        while (item := self._queue.get()) is not None:
            self._carry_out(*item)

    def _carry_out(self, job: Job, reporter: JobReporter, work: Work) -> None:
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
            logger.exception("the job %s failed", job.action)
            job.error = f"unexpected error ({type(error).__name__}): the server's log says where"
        job.seconds = time.perf_counter() - started
        self._metrics.job(job.action, state)
        job.state = state  # last: whoever sees the end sees all of it


def _yield_to_readers() -> None:
    """Leave a core to those that predict, and give this thread and those it starts a lower priority, where possible."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, own + NICENESS))
