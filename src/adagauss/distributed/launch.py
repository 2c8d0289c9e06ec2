"""Start the processes of distributed training, and explain how they ended."""

from __future__ import annotations

import inspect
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
from joblib import cpu_count  # type: ignore[import-untyped]
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from adagauss import errors
from adagauss.distributed.processes import Processes
from adagauss.errors import AdagaussError, ConfigError, ProcessError
from adagauss.utils.runtime import Runtime, RuntimeConfig, resolve_precision

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Work = Callable[..., object]
"""A module-level function that every process runs, with `Processes` as first argument; its result is ignored."""

GRACE = 2.0
"""Seconds that a process waits after losing another, so that the other is reported as the cause."""
START_METHOD: Literal["spawn", "forkserver"] = "spawn"
"""How processes start; CUDA needs spawn."""
LOST = ("gloo", "connection", "timed out", "timeout", "nccl", "socket")
"""Words in torch's errors about a lost process."""
STOPPED = "all have stopped; saved files are complete"
# Which process starts, and which ones are ended after one has failed. Started processes import this module first.
for _name in (
    "lightning_fabric.utilities.distributed",
    "lightning_fabric.utilities.rank_zero",
    "torch.multiprocessing.spawn",
):
    logging.getLogger(_name).setLevel(logging.ERROR)


def check_devices(devices: int, config: RuntimeConfig) -> None:
    """Raise if this machine cannot provide ``devices`` processes, each with a GPU or some cores of its own."""
    if devices < 1:
        raise ConfigError(f"devices must be at least 1; got {devices}")
    if torch.distributed.is_torchelastic_launched():
        raise ConfigError("the processes are started here, not by torchrun: run the command itself, with --devices")
    if devices == 1:
        return
    if config.compile:
        raise ConfigError("several processes cannot train a compiled network: set compile=false or devices=1")
    kind, _, index = config.device.partition(":")
    if index:
        raise ConfigError(f"device {config.device!r} is one device, but {devices} were requested: set device={kind}")
    runtime = Runtime(config)
    cuda = runtime.device.type == "cuda"
    there = torch.cuda.device_count() if cuda else cpu_count()
    if devices > there:
        name = "CUDA devices" if cuda else "CPU cores"
        raise ConfigError(f"{devices} devices were requested, but this machine has {there} {name}: request fewer")
    runtime.check()
    if hasattr(sys, "ps1"):
        raise ConfigError("several processes cannot be started from a prompt or a notebook: write a script")


def launch(work: Work, devices: int, config: RuntimeConfig, *arguments: Any) -> None:
    """Run ``work(processes, *arguments)`` in every process; raises the error of the first that failed."""
    before = set(multiprocessing.active_children())
    with tempfile.TemporaryDirectory() as folder, _own_environment():
        try:
            _fabric(devices, config).launch(_Part(work, Path(folder), arguments))
        except (ProcessExitedException, ProcessRaisedException) as error:
            _explain(Path(folder), devices, error)
        finally:
            for child in set(multiprocessing.active_children()) - before:  # after Ctrl-C or an error
                child.terminate()
                child.join(GRACE)
                if child.is_alive():
                    child.kill()


def _fabric(devices: int, config: RuntimeConfig) -> Fabric:
    """Fabric with data-parallel training; imported here because the import takes seconds."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    # Buffers need not be sent in every step: the statistics of batch norm are equal in all processes.
    known = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    settings: dict[str, Any] = {buffers: False}
    device = Runtime(config).device
    strategy = DDPStrategy(
        start_method=START_METHOD,
        cluster_environment=LightningEnvironment(),  # inside a Slurm job as well
        find_unused_parameters=True,  # terms come and go between epochs, and their parameters with them
        **settings,
    )
    precision = resolve_precision(config.precision, device)
    return Fabric(accelerator=device.type, strategy=strategy, devices=devices, precision=precision)


class _Part:
    """The function of a started process; one object, because Fabric traverses collections that it passes on."""

    def __init__(self, work: Work, folder: Path, arguments: tuple[Any, ...]) -> None:
        self.work, self.folder, self.arguments = work, folder, arguments

    def __call__(self, fabric: Fabric) -> None:
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
        # Torch's warning about a convolution with a single input channel, whose memory orders are all one.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        try:
            with explained():
                self.work(Processes(fabric), *self.arguments)
        except AdagaussError as error:
            if isinstance(error, ProcessError):
                time.sleep(GRACE)  # the lost process is the cause and must be reported first
            report = json.dumps([type(error).__name__, str(error)])
            (self.folder / str(fabric.global_rank)).write_text(report, encoding="utf-8")
            sys.exit(2)


def _end_with_parent() -> None:
    """Exit after the parent process: torch's own signal for that is lost where SIGINT is ignored."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


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


def _explain(folder: Path, number: int, error: ProcessExitedException | ProcessRaisedException) -> NoReturn:
    """Raise the error that a process reported, or describe how it ended."""
    report, process = folder / str(error.error_index), f"process {error.error_index} of {number}"
    if report.exists():
        kind, message = json.loads(report.read_text(encoding="utf-8"))
        raise getattr(errors, kind, AdagaussError)(message) from None
    if isinstance(error, ProcessRaisedException):
        raise RuntimeError(f"{process}: {str(error).strip().splitlines()[-1]}") from error
    if error.signal_name is not None:
        why = "; the system may have run out of memory" if error.signal_name == "SIGKILL" else ""
        raise ProcessError(f"{process} was terminated by {error.signal_name}{why}: {STOPPED}") from None
    raise ProcessError(
        f"{process} ended before it started: a script that starts processes must run its code under "
        "`if __name__ == '__main__':`, in a file"
    ) from None


@contextmanager
def _own_environment() -> Iterator[None]:
    """Use the loopback interface for the processes; restores the environment afterwards."""
    before = dict(os.environ)
    # Torch warns once per process that finding unused parameters takes time; it is needed.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    if sys.platform != "win32":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    for name in ("MASTER_PORT", "LOCAL_RANK"):
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
