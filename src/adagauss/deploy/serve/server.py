"""One server: the model, the thread that learns, the thread that classifies, and the threads that decode.

Every change is a job. One thread runs the jobs in order, while predictions continue with the current model.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Literal

import torch
from prometheus_client import Counter, Gauge
from pydantic import BaseModel, Field, PrivateAttr

from adagauss.core.predictor import Prediction
from adagauss.data.decode import Pixels
from adagauss.deploy.serve.model import Model
from adagauss.deploy.serve.security import Access, ApiError, Limits, Quota
from adagauss.deploy.serve.store import NOT_NAMED, Action, Store
from adagauss.deploy.serve.uploads import Decoder
from adagauss.errors import AdagaussError
from adagauss.utils.progress import Advance, Reporter

logger = logging.getLogger(__name__)
JOBS = Counter("adagauss_jobs", "Finished jobs.", ["action", "state"])
PICTURES = Counter("adagauss_pictures", "Classified pictures.")
CLASSES = Gauge("adagauss_classes", "Classes of the model.")
VERSION = Gauge("adagauss_model_version", "Number of the last change of the model.")
OPEN_JOBS = Gauge("adagauss_jobs_open", "Jobs that are waiting or running.")

AT_ONCE = 32
"""Pictures that are classified together. Longer requests are split, so that short ones do not wait for them."""
REMEMBERED = 200
"""Number of finished jobs that are listed."""
STAGE_SHARE = 0.8
"""Share of the remaining progress bar that a stage fills, because the number of stages is unknown."""
NICENESS = 10
NOTES = 20


State = Literal["waiting", "running", "done", "failed", "cancelled"]


class Skipped(BaseModel):
    """A picture that could not be used."""

    name: str
    reason: str


class Job(BaseModel):
    """A change of the model. In the state ``done`` it is saved."""

    id: str = Field(default_factory=lambda: secrets.token_hex(8))
    action: Action
    summary: str
    names: list[str] = Field(default_factory=list, exclude=True)
    """Names of the classes in the summary."""
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
    _stop: threading.Event = PrivateAttr(default_factory=threading.Event)
    _future: Future[None] = PrivateAttr()

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


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
        job, start, done = self._job, self._job.progress, 0.0
        self._depth += 1
        outermost = self._depth == 1

        def advance(note: str = "", step: float = 1.0) -> None:
            nonlocal done
            if job._stop.is_set():
                raise CancelledError
            done += step
            if outermost:
                job.progress = start + (1.0 - start) * STAGE_SHARE * min(1.0, done / max(total, 1e-9))

        if outermost:
            job.stage = title
        try:
            yield advance
        finally:
            self._depth -= 1


class Server:
    """A model with its jobs and threads: one learns, one classifies, a few decode."""

    def __init__(self, store: Store, access: Access = Access(), limits: Limits = Limits()) -> None:  # noqa: B008 - immutable
        self.store = store
        self.access = access
        self.limits = limits
        self.decoder = Decoder(limits)
        self.uploads = Quota(limits.uploads, "too many unfinished uploads from this address", status=429)
        self._waiting = Quota(limits.waiting_pictures, "too many pictures are queued")
        self._jobs: dict[str, Job] = {}
        self._learning = ThreadPoolExecutor(1, "learn", _yield_to_readers)
        # The number of torch's threads is a setting of each thread. For few pictures a second one is mostly idle.
        self._classifying = ThreadPoolExecutor(1, "classify", torch.set_num_threads, (1,))
        CLASSES.set_function(lambda: len(store.model.labels))
        VERSION.set_function(lambda: store.model.version)
        OPEN_JOBS.set_function(lambda: len(self.open_jobs))

    def stop(self) -> None:
        """Stop all threads. The running job ends at its next step, or completes if it is saving."""
        for job in self.jobs:
            job._stop.set()
        self._learning.shutdown(cancel_futures=True)
        self._classifying.shutdown()
        self.decoder.close()
        self.store.close()

    async def classify(self, model: Model, pixels: list[Pixels], top: int, unknown: float | None) -> list[Prediction]:
        """Classify the pictures of a request, all with this model."""
        loop, answers = asyncio.get_running_loop(), list[Prediction]()
        with self._waiting.use() as take:
            take(len(pixels))
            for start in range(0, len(pixels), AT_ONCE):
                piece = pixels[start : start + AT_ONCE]
                answers += await loop.run_in_executor(self._classifying, model.classify, piece, top, unknown)
        PICTURES.inc(len(pixels))
        return answers

    @property
    def jobs(self) -> list[Job]:
        """Listed jobs, newest first."""
        return list(self._jobs.values())[::-1]

    @property
    def open_jobs(self) -> list[Job]:
        """Jobs that are waiting or running, newest first."""
        return [job for job in self.jobs if not job.ended]

    def job(self, name: str) -> Job:
        """Return the job with this id."""
        if name not in self._jobs:
            raise ApiError(404, "job not found: jobs are listed until the server restarts")
        return self._jobs[name]

    def cancel(self, name: str) -> Job:
        """Cancel a job. A job that is already saving completes."""
        job = self.job(name)
        job._stop.set()
        if job._future.cancel():  # it has not started
            job.state = "cancelled"
        return job

    def require_room(self) -> None:
        """Raise if too many jobs are waiting. Called before the pictures of a change are received."""
        if sum(job.state == "waiting" for job in self.jobs) >= self.limits.waiting_jobs:
            raise ApiError(503, "the job queue is full: try again later", 5.0)

    def submit(self, job: Job, work: Callable[[Reporter], int]) -> Job:
        """Queue a job; ``work`` applies and saves a change, and returns the new version."""
        self.require_room()
        job._future = self._learning.submit(_run, job, work)
        self._jobs[job.id] = job
        for old in [job for job in self.jobs if job.ended][REMEMBERED:]:
            del self._jobs[old.id]
        return job

    def change(self, job: Job, make: Callable[[Model, Reporter], Model], for_good: bool = False) -> Job:
        """Queue a job that changes the model.

        With ``for_good``, the copies for undo are deleted, and the classes are named nowhere afterwards.
        """

        def work(reporter: Reporter) -> int:
            version = self.store.change(job.action, job.summary, job.names, lambda model: make(model, reporter))
            return self.drop_copies(job.names) if for_good else version

        return self.submit(job, work)

    def drop_copies(self, forgotten: list[str]) -> int:
        """Delete the copies for undo, and the names of these classes; return the version of the model."""
        names = self.store.finish(forgotten)
        for job in self.jobs:
            if not names.isdisjoint(job.names):
                job.summary, job.names, job.error, job.notes, job.skipped = NOT_NAMED, [], "", [], []
        return self.store.model.version


def _run(job: Job, work: Callable[[Reporter], int]) -> None:
    started = time.perf_counter()
    state: State = "failed"
    job.state = "running"
    try:
        job.version = work(JobReporter(job))
        job.progress, state = 1.0, "done"
    except CancelledError:  # the model is replaced in the last step, so it is unchanged
        state = "cancelled"
    except AdagaussError as error:
        job.error = str(error)
    except OSError as error:
        job.error = f"the disk does not work ({error.strerror}): check it, and whether the change is in the history"
    except Exception as error:
        logger.exception("job %s failed", job.action)
        job.error = f"unexpected error ({type(error).__name__}): see the server's log"
    job.seconds = time.perf_counter() - started
    JOBS.labels(job.action, state).inc()
    job.state = state  # set last: a reader that sees the final state sees all fields


def _yield_to_readers() -> None:
    """Leave one core for predictions and lower the priority of this thread and its children, where supported."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
    with suppress(AttributeError, OSError):  # there are no priorities on Windows
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, own + NICENESS))
