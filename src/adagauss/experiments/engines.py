"""Engines that make runs elsewhere, as executors: worker processes, Ray, Slurm and Dask."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from adagauss.errors import ConfigError, WorkerError, unknown_name
from adagauss.utils.process import keep_freed_memory
from adagauss.utils.registry import import_extra

ENGINES = ("local", "dask", "ray", "slurm")
LOCAL = "local"
"""Instead of an address or a partition: the engine on this machine alone."""
SPAWN = get_context("spawn")
CONNECT_SECONDS = 10.0
SLURM_MINUTES = 24 * 60
MOST_JOBS = 500
"""Slurm jobs whose end is awaited at a time."""


@contextmanager
def open_executor(
    folder: Path, engine: str | None = None, *, jobs: int | None = None, gpus: int = 0
) -> Iterator[Executor | None]:
    """Open an engine; None without an engine and ``jobs``. Runs that have not finished at the end are stopped.

    Args:
        folder: where Slurm stores its logs; all machines must see it.
        engine: ``local``, ``dask``, ``ray`` or ``slurm``, the last three optionally with an address or a partition
            (``dask=HOST:PORT``); without one they use this machine.
        jobs: number of processes, or of workers of an engine on this machine.
        gpus: GPUs that each run needs.
    """
    kind, _, address = (engine or LOCAL).partition("=")
    address = address or LOCAL
    if kind not in ENGINES:
        raise unknown_name("engine", kind, ENGINES)
    executor: Executor | None = None
    with ExitStack() as stack:
        if kind == "dask":
            executor = _dask(address, jobs, stack)
        elif kind == "ray":
            executor = RayExecutor(address, jobs, gpus)
        elif kind == "slurm":
            executor = SlurmExecutor(address, folder, gpus)
        elif engine is not None or jobs is not None:
            executor = WorkerProcesses(jobs if jobs is not None else os.cpu_count() or 1)
        if executor is not None and kind != "dask":
            stack.callback(executor.shutdown, cancel_futures=True)
        yield executor


@contextmanager
def _connecting(option: str, address: str) -> Iterator[None]:
    """Raise errors of an engine as a `WorkerError`."""
    try:
        yield
    except (OSError, RuntimeError, TimeoutError, ValueError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise WorkerError(f"{option}={address} cannot be used ({reason}): check the address") from error


class WorkerProcesses(ThreadPoolExecutor):
    """Worker processes of this machine, one for each thread: a crash of one does not affect the others."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ConfigError(f"--jobs is the number of processes, at least 1; got {count}")
        super().__init__(count, "worker")
        self._here = threading.local()
        # Workers end when the other end is closed, even by the death of this process, which releases their locks.
        self._theirs, self._ours = SPAWN.Pipe(duplex=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call when a worker is idle."""
        return super().submit(self._call, partial(fn, *args, **kwargs))

    def _call(self, call: Callable[[], Any]) -> Any:
        """Run a call in the process of this thread; a process that died is replaced at the next call."""
        if not hasattr(self._here, "pool"):
            self._here.pool = ProcessPoolExecutor(1, SPAWN, _start_worker, (self._theirs,))
        try:
            return self._here.pool.submit(call).result()
        except BrokenProcessPool:
            del self._here.pool
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers; with ``cancel_futures`` at once, without waiting for their calls."""
        super().shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        self._ours.close()


def _start_worker(parent: Connection) -> None:
    def wait() -> None:
        with suppress(EOFError, OSError):
            parent.recv()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    keep_freed_memory()  # as the command line does: this process belongs to the library
    threading.Thread(target=wait, name="parent", daemon=True).start()


class RayExecutor(Executor):
    """A Ray cluster, or one on this machine."""

    def __init__(self, address: str, jobs: int | None = None, gpus: int = 0) -> None:
        self._ray = import_extra("ray", "ray", "--engine ray")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == LOCAL:
            # Without these, Ray reports its use to its makers, and writes a token into the home folder.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            options |= {"num_cpus": jobs, "include_dashboard": False}
        with _connecting("--engine ray", address):
            self._ray.init(address=address, **options)
        self._remote = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call in the cluster."""
        future: Future[Any] = self._remote(fn).remote(*args, **kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect, which ends the calls."""
        self._ray.shutdown()


def _dask(address: str, jobs: int | None, stack: ExitStack) -> Executor:
    """A Dask scheduler, or workers on this machine."""
    distributed = import_extra("distributed", "dask", "--engine dask")
    with _connecting("--engine dask", address):
        place: Any = address
        if address == LOCAL:
            place = stack.enter_context(
                distributed.LocalCluster(n_workers=jobs or os.cpu_count(), threads_per_worker=1, dashboard_address=None)
            )
        client = stack.enter_context(distributed.Client(place, timeout=CONNECT_SECONDS, set_as_default=False))
    if not client.scheduler_info()["workers"]:
        warnings.warn(f"{address} has no worker yet: runs wait until one connects", stacklevel=2)
    executor: Executor = client.get_executor(pure=False, retries=0)
    stack.callback(executor.shutdown, wait=False)
    return executor


class SlurmExecutor(Executor):
    """One Slurm job per call; variables of sbatch (SBATCH_TIMELIMIT, SBATCH_ACCOUNT, ...) apply too."""

    def __init__(self, partition: str, folder: Path, gpus: int = 0) -> None:
        submitit = import_extra("submitit", "slurm", "--engine slurm")
        cluster, parameters = LOCAL, {}
        if partition != LOCAL:
            cluster, parameters = "slurm", {"slurm_partition": partition}
            if shutil.which("sbatch") is None:
                raise ConfigError(
                    f"--engine slurm={partition} needs Slurm's command sbatch, which is not on this machine"
                )
        self._submitit = submitit.AutoExecutor(folder=folder.absolute() / "slurm", cluster=cluster)
        self._submitit.update_parameters(
            name="adagauss",
            nodes=1,
            tasks_per_node=1,
            cpus_per_task=1,
            gpus_per_node=gpus,
            timeout_min=SLURM_MINUTES,
            **parameters,
        )
        self._jobs: list[Any] = []
        self._threads = ThreadPoolExecutor(MOST_JOBS, "slurm")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a job."""
        job = self._submitit.submit(fn, *args, **kwargs)
        self._jobs.append(job)
        return self._threads.submit(job.result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the jobs, or wait for them."""
        for job in self._jobs:
            if cancel_futures and not job.done():
                job.cancel()
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
