"""Engines that run cells, all behind `concurrent.futures.Executor`: processes, Ray, Slurm, Dask."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from adagauss.errors import ConfigError, WorkerError
from adagauss.experiments.workers import WorkerProcesses
from adagauss.utils.registry import import_extra

LOCAL = "local"
"""Instead of an address or a partition: the engine on this machine alone."""
ANSWER_SECONDS = 10.0
BETWEEN_LOOKS = 1.0
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
    """The engine that was asked for; None if none was. What it still runs in the end is stopped.

    Args:
        folder: where Slurm keeps its logs; all machines must see it.
        jobs: number of processes, or of workers of a local engine.
        ray: address of a cluster, or ``local``.
        slurm: a partition, or ``local`` to try it without Slurm.
        dask: address of a scheduler, or ``local``.
        gpus: GPUs that each run needs.
    """
    asked = {"--ray": ray, "--slurm": slurm, "--dask": dask}
    given = [option for option, value in asked.items() if value is not None]
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
    """One Slurm job per cell; variables of sbatch (SBATCH_TIMELIMIT, SBATCH_ACCOUNT, ...) add to what is asked for."""

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
        while not self._ended.wait(BETWEEN_LOOKS):
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
            self._ended.wait(BETWEEN_LOOKS)
        self._ended.set()
        self._watcher.join()
        for job in self._jobs.values():
            job.cancel()


def _reach(address: str, option: str, remedy: str) -> None:
    """Raise at once if nobody listens there: engines try for minutes."""
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
        raise WorkerError(f"{option}: nobody answers at {address} ({error}): check the address; {remedy}") from error


def _unreachable(option: str, address: str, error: Exception) -> WorkerError:
    return WorkerError(f"{option} {address} cannot be used ({type(error).__name__}: {str(error)[:200]})")
