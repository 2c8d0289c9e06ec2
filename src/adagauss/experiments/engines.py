"""Engines that compute runs or batches elsewhere: processes, Ray, Slurm, Dask; and their heartbeat."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adagauss.errors import CheckpointError, ConfigError, WorkerError
from adagauss.utils.process import keep_freed_memory
from adagauss.utils.progress import Advance, Reporter, Work
from adagauss.utils.registry import import_extra

PREFIX = ".session-"
HEARTBEAT = "beat"
HEARTBEAT_SECONDS = 5.0
BETWEEN_LOOKS = 1.0
HEARTBEAT_TIMEOUT = 60.0
"""Seconds without a heartbeat after which a worker stops: network folders show changes late."""
STALE = 86_400.0

logger = logging.getLogger(__name__)


class CancelledError(WorkerError):
    """Nobody waits for this work any more."""


@contextmanager
def session(out: Path, every: float = HEARTBEAT_SECONDS) -> Iterator[Path]:
    """A new session folder below ``out``, with a beating heart; it is removed in the end, which stops the workers."""
    folder = out / f"{PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir(parents=True)
        _sweep(out)
        _heartbeat(folder, 0)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written ({error.strerror}): choose another --out") from error
    ended = threading.Event()

    def beats() -> None:
        count = 0
        while not ended.wait(every):
            count += 1
            with suppress(OSError):  # a disk that is full for a moment
                _heartbeat(folder, count)

    thread = threading.Thread(target=beats, name="beats", daemon=True)
    thread.start()
    try:
        yield folder
    finally:
        ended.set()
        thread.join()
        shutil.rmtree(folder, ignore_errors=True)


def _heartbeat(folder: Path, count: int) -> None:
    (folder / HEARTBEAT).write_text(str(count), encoding="ascii")


def _sweep(out: Path) -> None:
    """Remove the sessions of processes that were killed."""
    for folder in out.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if time.time() - (folder / HEARTBEAT).stat().st_mtime > STALE:
                shutil.rmtree(folder, ignore_errors=True)


def status(folder: Path, number: int) -> dict[str, Any]:
    """Host, process and progress of a piece of work; empty before it starts."""
    try:
        content = json.loads((folder / f"{number}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not started, or being written at this moment
        return {}
    return content if isinstance(content, dict) else {}


class HeartbeatReporter(Reporter):
    """Report a worker's progress to its session, collect its messages, and stop it if the heartbeat ends."""

    def __init__(
        self,
        folder: Path,
        number: int,
        patience: float = HEARTBEAT_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.messages: list[str] = []
        self._folder = folder
        self._number = number
        self._patience = patience
        self._clock = clock
        self._open: list[Work] = []
        self._looked = self._changed = clock()
        self._last = self._read()
        if self._last is None:
            raise WorkerError(
                f"{socket.gethostname()} does not see {folder.parent}: runs on several machines need an --out folder "
                "that all of them share under one path"
            )
        self._write()

    @contextmanager
    def progress(self, title: str, total: float, unit: str = "") -> Iterator[Advance]:
        work = Work(title, total, unit, started=0.0)
        self._open.append(work)

        def advance(note: str = "", step: float = 1.0) -> None:
            work.advance(note, step)
            if self._clock() - self._looked >= BETWEEN_LOOKS:
                self.look()

        try:
            yield advance
        finally:
            self._open.remove(work)

    def message(self, text: str) -> None:
        self.messages.append(text)

    def look(self) -> None:
        """Say what is done; raise if the session is over."""
        now = self._looked = self._clock()
        seen = self._read()
        if seen is not None and seen != self._last:
            self._last, self._changed = seen, now
        if not self._folder.exists() or now - self._changed > self._patience:
            raise CancelledError("the process that started this run is gone, so the run stopped; it can be resumed")
        self._write()

    def _read(self) -> str | None:
        try:
            return (self._folder / HEARTBEAT).read_text(encoding="ascii")
        except OSError:
            return None

    def _write(self) -> None:
        # The first is the run itself, whose name is known; what it counts are its tasks.
        texts = [f"{work.count} {work.note}".rstrip() for work in self._open[:1]] + [*map(str, self._open[1:])]
        facts = {"where": f"{socket.gethostname()}:{os.getpid()}", "now": " | ".join(texts)}
        try:
            (self._folder / f"{self._number}.json").write_text(json.dumps(facts), encoding="utf-8")
        except OSError as error:  # it is only shown
            logger.info("no progress was reported: %s", error)


class WorkerProcesses(Executor):
    """Worker processes of this machine, each in its own pool: a crash of one does not affect the others."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ConfigError(f"--jobs is the number of processes, at least 1; got {count}")
        self._threads = ThreadPoolExecutor(count, "specs", initializer=_shield)
        self._local = threading.local()
        self._pools: list[_Pool] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call elsewhere; the future gets what it returns or raises."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        pool: _Pool | None = getattr(self._local, "pool", None)
        if pool is None or pool.ended:
            pool = self._local.pool = _Pool()
            self._pools.append(pool)
        return pool.call(fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        for pool in self._pools:
            pool.end()
        self._threads.shutdown(wait=wait)


class _Pool:
    """A pool of one process, which ends when this end of a pipe is closed, even by the death of this process."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._theirs, self._ours = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, context, initializer=_attend, initargs=(self._theirs,))
        self.ended = False

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            future = self._pool.submit(fn, *args, **kwargs)
            self._theirs.close()  # the process has been started with its own
            return future.result()
        except BrokenProcessPool:
            self.end()
            raise

    def end(self) -> None:
        self.ended = True
        self._ours.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _shield() -> None:
    """Ctrl-C is for the process that waits; processes inherit this from the thread that starts them."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _attend(parent: Connection) -> None:
    """End this process together with the one that started it: a lock that it holds is free then."""

    def wait() -> None:
        with suppress(EOFError, OSError):
            parent.recv()
        os._exit(1)

    keep_freed_memory()  # as the command line does: this process is ours alone
    threading.Thread(target=wait, name="parent", daemon=True).start()


LOCAL = "local"
"""Instead of an address or a partition: the engine on this machine alone."""
ANSWER_SECONDS = 10.0
POLL_SECONDS = 1.0
SLURM_MINUTES = 24 * 60


@contextmanager
def open_executor(
    folder: Path,
    *,
    jobs: int | None = None,
    ray: str | None = None,
    slurm: str | None = None,
    dask: str | None = None,
    gpus: int = 0,
) -> Iterator[Executor | None]:
    """Open the chosen engine; None if none was chosen. Runs that are left at the end are stopped.

    Args:
        folder: where Slurm keeps its logs; all machines must see it.
        jobs: number of processes, or of workers of a local engine.
        ray: address of a cluster, or ``local``.
        slurm: a partition, or ``local`` to try it without Slurm.
        dask: address of a scheduler, or ``local``.
        gpus: GPUs that each run needs.
    """
    chosen = {"--ray": ray, "--slurm": slurm, "--dask": dask}
    given = [option for option, value in chosen.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} are two engines: give one of them")
    executor: Executor | None = None
    if ray is not None:
        executor = RayExecutor(ray, jobs, gpus)
    elif slurm is not None:
        executor = SlurmExecutor(slurm, folder, gpus)
    elif dask is not None:
        executor = DaskExecutor(dask, jobs)
    elif jobs is not None:
        executor = WorkerProcesses(jobs)
    try:
        yield executor
    finally:
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)


class RayExecutor(Executor):
    """A Ray cluster, or one on this machine."""

    def __init__(self, address: str, jobs: int | None = None, gpus: int = 0) -> None:
        self._ray = import_extra("ray", "ray", "--ray")
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address == LOCAL:
                # Without these, Ray reports its use to its makers, and writes a token into the home folder.
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
                os.environ.setdefault("RAY_AUTH_MODE", "disabled")
                self._ray.init(address=LOCAL, num_cpus=jobs, include_dashboard=False, **quiet)
            else:
                _reach(address, "--ray", "`ray start --head` starts one")
                self._ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            raise _unreachable("--ray", address, error) from error
        self._needs = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call elsewhere; the future gets what it returns or raises."""
        task = self._ray.remote(**self._needs)(fn)
        future: Future[Any] = task.remote(*args, **kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ray.shutdown()


class DaskExecutor(Executor):
    """A Dask scheduler, or workers on this machine."""

    def __init__(self, address: str, jobs: int | None = None) -> None:
        distributed = import_extra("distributed", "dask", "--dask")
        self._cluster: Any = None
        try:
            if address == LOCAL:
                self._cluster = distributed.LocalCluster(
                    n_workers=jobs or os.cpu_count(), threads_per_worker=1, dashboard_address=None
                )
            else:
                _reach(address, "--dask", "`dask scheduler` starts one")
            where = self._cluster or address
            self._client = distributed.Client(where, timeout=ANSWER_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise _unreachable("--dask", address, error) from error
        if not self._client.scheduler_info()["workers"]:
            warnings.warn(f"no worker has joined {address} yet: runs wait until one does", stacklevel=2)
        self._inner = self._client.get_executor(pure=False, retries=0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call elsewhere; the future gets what it returns or raises."""
        future: Future[Any] = self._inner.submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._inner.shutdown(wait=False)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


class SlurmExecutor(Executor):
    """One Slurm job per run; variables of sbatch (SBATCH_TIMELIMIT, SBATCH_ACCOUNT, ...) apply too."""

    def __init__(self, partition: str, folder: Path, gpus: int = 0) -> None:
        submitit = import_extra("submitit", "slurm", "--slurm")
        if partition != LOCAL and shutil.which("sbatch") is None:
            raise ConfigError(f"--slurm {partition} needs Slurm's command sbatch, which is not on this machine")
        cluster = LOCAL if partition == LOCAL else "slurm"
        self._submitit = submitit.AutoExecutor(folder=folder.absolute() / "slurm", cluster=cluster)
        self._submitit.update_parameters(
            name="adagauss", nodes=1, tasks_per_node=1, cpus_per_task=1, gpus_per_node=gpus, timeout_min=SLURM_MINUTES
        )
        if partition != LOCAL:
            self._submitit.update_parameters(slurm_partition=partition)
        self._jobs: dict[Future[Any], Any] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="slurm", daemon=True)
        self._watcher.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call elsewhere; the future gets what it returns or raises."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        job = self._submitit.submit(fn, *args, **kwargs)
        with self._lock:
            self._jobs[future] = job
        return future

    def _watch(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            with self._lock:
                ended = {future: job for future, job in self._jobs.items() if job.done()}
                for future in ended:
                    del self._jobs[future]
            for future, job in ended.items():
                try:
                    future.set_result(job.result())
                except Exception as error:  # submitit's, of many kinds
                    future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while wait and not cancel_futures and self._jobs:
            self._ended.wait(POLL_SECONDS)
        self._ended.set()
        self._watcher.join()
        for job in self._jobs.values():
            job.cancel()


def _reach(address: str, option: str, remedy: str) -> None:
    """Raise at once if the address does not answer: engines retry for minutes."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        if address == "auto":
            return
        raise ConfigError(f"{option} takes an address such as 10.0.0.1:6379, or {LOCAL}; got {address!r}")
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        raise WorkerError(f"{option}: cannot connect to {address} ({error}): check the address; {remedy}") from error


def _unreachable(option: str, address: str, error: Exception) -> WorkerError:
    return WorkerError(f"{option} {address} cannot be used ({type(error).__name__}: {str(error)[:200]})")
