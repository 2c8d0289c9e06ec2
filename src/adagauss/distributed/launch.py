"""Start processes for distributed training, or join those that torchrun or Slurm started."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from adagauss import errors
from adagauss.distributed.processes import BatchNorm, Processes
from adagauss.errors import AdagaussError, ConfigError, ProcessError
from adagauss.utils.runtime import Runtime, RuntimeConfig, resolve_precision

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Work = Callable[..., object]
"""A module-level function that every process runs, with `Processes` as first argument; its result is ignored."""

GRACE = 2.0
"""Seconds that a process waits after losing another, so that the other is reported as the cause."""
BETWEEN_LOOKS = 1.0
"""Seconds between checks whether the parent process is alive."""
LOST = ("gloo", "connection", "timed out", "timeout", "nccl", "socket")
"""Words in torch's errors about a lost process."""
STOPPED = "all have stopped; saved files are complete"


@dataclass(frozen=True)
class Layout:
    """How many processes train together, and how batch norm uses their batches."""

    devices: int = 1
    """Processes on each machine, each with its own device: a GPU, or some cores."""
    nodes: int = 1
    """Machines; with more than one, torchrun or Slurm must start the processes."""
    batch_norm: BatchNorm = "global"

    @property
    def several(self) -> bool:
        return self.devices * self.nodes > 1

    def check(self, config: RuntimeConfig) -> None:
        """Raise if this machine or the launcher cannot provide the requested processes."""
        if min(self.devices, self.nodes) < 1:
            raise ConfigError(f"devices and nodes are at least 1; got {self.devices} and {self.nodes}")
        if self.batch_norm not in ("global", "local"):
            raise ConfigError(f"batch norm of several processes is global or local; got {self.batch_norm!r}")
        if not self.several:
            if torch.distributed.is_torchelastic_launched() and (number := os.environ.get("WORLD_SIZE")) != "1":
                raise ConfigError(
                    f"torchrun started {number} processes for one device: request as many devices as processes"
                )
            return
        if config.compile:
            raise ConfigError("several processes cannot train a compiled network: set compile=false or devices=1")
        kind, _, index = config.device.partition(":")
        if index:
            raise ConfigError(
                f"device {config.device!r} is one device, but {self.devices} were requested: set device={kind}"
            )
        device = Runtime(config).device.type
        there = torch.cuda.device_count() if device == "cuda" else usable_cores()
        if self.devices > there:
            name = "CUDA devices" if device == "cuda" else "CPU cores"
            raise ConfigError(
                f"{self.devices} devices were requested, but this machine has {there} {name}: request fewer"
            )
        Runtime(config).check()
        self._check_surroundings()

    def _check_surroundings(self) -> None:
        started = processes_here()
        if started is not None and started != (self.devices, self.devices * self.nodes):
            raise ConfigError(
                f"{started[0]} processes were started on this machine, {started[1]} in all, but {self.devices} devices "
                f"on {self.nodes} machines requested: use equal numbers, e.g. torchrun --nproc-per-node {self.devices}"
            )
        if started is None and self.nodes > 1:
            raise ConfigError(
                f"{self.nodes} machines need something that starts processes on each: on each of them `torchrun "
                f"--nnodes {self.nodes} --nproc-per-node {self.devices} --rdzv-backend c10d --rdzv-endpoint "
                "FIRST_MACHINE:29400 -m adagauss ...`, or `srun` under Slurm"
            )
        if started is None and hasattr(sys, "ps1"):
            raise ConfigError("several processes cannot be started from a prompt or a notebook: write a script")


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes_here() -> tuple[int, int] | None:
    """Number of processes that torchrun or Slurm started on this machine and in total; None without a launcher."""
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    if TorchElasticEnvironment.detect():
        return int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    if SLURMEnvironment.detect():
        everywhere = int(os.environ["SLURM_NTASKS"])
        return everywhere // int(os.environ.get("SLURM_NNODES", "1")), everywhere
    return None


def first_here() -> bool:
    """Whether this process reports: the first that torchrun or Slurm started, or the only one."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))) == 0 or processes_here() is None


def launch(work: Work, layout: Layout, config: RuntimeConfig, *arguments: Any) -> bool:
    """Run ``work(processes, *arguments)`` in every process; returns whether this process was one of them.

    Under torchrun or Slurm this process is one of them. Without a launcher it starts the processes, waits for all and
    raises the error of the first that failed.
    """
    if processes_here() is not None:
        fabric = _fabric(layout, config, "popen")
        with explained():
            fabric.launch()
            work(Processes(fabric, layout.batch_norm), *arguments)
        return True
    before = set(multiprocessing.active_children())
    with tempfile.TemporaryDirectory() as folder, _own_surroundings():
        try:
            fabric = _fabric(layout, config, "spawn")
            fabric.launch(_Part(work, layout.batch_norm, Path(folder), arguments))
        except ProcessExitedException as error:
            _explain(Path(folder), error.error_index, layout.devices, error.signal_name, error)
        except ProcessRaisedException as error:
            _explain(Path(folder), error.error_index, layout.devices, None, error)
        finally:
            _end(set(multiprocessing.active_children()) - before)
    return False


@contextmanager
def explained() -> Iterator[None]:
    """Raise torch's errors about a lost process as a `ProcessError`."""
    try:
        yield
    except AdagaussError:
        raise
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in LOST):
            raise
        raise ProcessError(f"another process ended or does not respond, so {STOPPED}") from error


def _fabric(layout: Layout, config: RuntimeConfig, start: Any) -> Fabric:
    from lightning_fabric import Fabric

    from adagauss.distributed.strategy import data_parallel

    device = Runtime(config).device
    return Fabric(
        accelerator=device.type,
        strategy=data_parallel(start),
        devices=layout.devices,
        num_nodes=layout.nodes,
        precision=resolve_precision(config.precision, device),
    )


class _Part:
    """The function of a started process; one object, because Fabric traverses collections that it passes on."""

    def __init__(self, work: Work, batch_norm: BatchNorm, folder: Path, arguments: tuple[Any, ...]) -> None:
        self.work, self.batch_norm, self.folder, self.arguments = work, batch_norm, folder, arguments
        self.parent = os.getpid()

    def __call__(self, fabric: Fabric) -> None:
        threading.Thread(target=_end_with, args=(self.parent,), name="parent", daemon=True).start()
        try:
            with explained():
                self.work(Processes(fabric, self.batch_norm), *self.arguments)
        except AdagaussError as error:
            if isinstance(error, ProcessError):
                time.sleep(GRACE)  # the lost process is the cause and must be reported first
            report = json.dumps([type(error).__name__, str(error)])
            (self.folder / str(fabric.global_rank)).write_text(report, encoding="utf-8")
            sys.exit(2)


def _end_with(parent: int) -> None:
    """Exit after the parent process: torch's own signal for that is lost where SIGINT is ignored."""
    while os.getppid() == parent:
        time.sleep(BETWEEN_LOOKS)
    os._exit(1)


def _explain(folder: Path, rank: int, number: int, signal: str | None, error: Exception) -> NoReturn:
    """Raise the error that process ``rank`` reported, or describe how it ended."""
    report = folder / str(rank)
    if report.exists():
        kind, message = json.loads(report.read_text(encoding="utf-8"))
        raise getattr(errors, kind, AdagaussError)(message) from None
    if signal is not None:
        why = "; the system may have run out of memory" if signal == "SIGKILL" else ""
        raise ProcessError(f"process {rank} of {number} was terminated by {signal}{why}: {STOPPED}") from None
    if isinstance(error, ProcessRaisedException):
        raise RuntimeError(f"process {rank} of {number}: {str(error).strip().splitlines()[-1]}") from error
    raise ProcessError(
        f"process {rank} of {number} ended before it started: a script that starts processes must run its code "
        "under `if __name__ == '__main__':`, in a file"
    ) from None


def _end(children: set[Any]) -> None:
    """Terminate processes that remain after Ctrl-C or an error."""
    for child in children:
        child.terminate()
    for child in children:
        child.join(GRACE)
        if child.is_alive():
            child.kill()


@contextmanager
def _own_surroundings() -> Iterator[None]:
    """Use the loopback interface for processes of one machine, and restore the environment afterwards."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    variables = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": loopback}
    # Torch warns once per process that finding unused parameters takes time; it is needed.
    variables["TORCH_CPP_LOG_LEVEL"] = os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")
    before = {name: os.environ.get(name) for name in (*variables, "MASTER_PORT", "LOCAL_RANK")}
    spawn_logger = logging.getLogger("torch.multiprocessing.spawn")
    level = spawn_logger.level
    spawn_logger.setLevel(logging.ERROR)  # which processes are ended after one has failed
    os.environ.update({} if sys.platform == "win32" else variables)
    os.environ.pop("MASTER_PORT", None)
    os.environ.pop("LOCAL_RANK", None)
    try:
        yield
    finally:
        spawn_logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
