"""Devices, precision, seeds and progress, in one place."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from adagauss.core.config import Config
from adagauss.distributed.processes import Processes
from adagauss.errors import ConfigError
from adagauss.utils.progress import Reporter

if TYPE_CHECKING:
    from lightning_fabric import Fabric


ModuleType = TypeVar("ModuleType", bound=nn.Module)

_GLOBAL_RANDOMNESS = threading.RLock()
"""Held while torch's own generator is used: there is one for all threads, and layers draw from no other."""


class RuntimeConfig(Config):
    """How computation is carried out; no setting here changes the results, except for rounding."""

    device: str = "auto"
    """``auto`` (a CUDA device if there is one), ``cpu``, ``cuda`` or ``cuda:1``; statistics need float64."""
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"
    channels_last: bool = True
    """Keep images and convolutions in channels-last memory order: faster on CPUs and tensor cores."""
    compile: bool = False
    """Compile the extractor for training (`torch.compile`): about a minute at the start of every task."""


class Snapshots(Protocol):
    """Storage of training states until their task is done, so that a killed run loses little work."""

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Tensors and facts of the last save for ``stage``, if any."""

    def offer(self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save now if enough time has passed since the last save."""


class Tracker(Protocol):
    """Records the losses of a training."""

    def epoch(self, stage: str, epoch: int, losses: Mapping[str, float]) -> None:
        """The mean of each loss in an epoch, counted from 0; a repeated epoch is reported again."""


def derive_seed(*parts: object) -> int:
    """A seed that depends only on the given parts: ``derive_seed(run_seed, "task 3", "epoch", 7)``."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


# A forward and backward pass through the products and convolutions that run in reduced precision on a CPU. Fabric uses
# bfloat16 there for 16-mixed as well.
REDUCED_PRECISION_PROBE = """
import torch
images = torch.rand(16, 32, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
network = torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 64))
with torch.autocast("cpu", dtype=torch.bfloat16):
    network(images).sum().backward()
"""


@cache
def reduced_precision_works() -> bool:
    """Whether bfloat16 works on this CPU, tried once in a child process, since a crash cannot be caught.

    A virtual machine may announce matrix units (AMX) that it does not support: the first product then kills the
    process. Any other failure of the child is ignored here, since the training itself can report it.
    """
    # Without -P, Python would look for modules in the current folder first, and run whatever it finds there.
    command = [sys.executable, "-P", "-c", REDUCED_PRECISION_PROBE]
    child = subprocess.run(command, capture_output=True, check=False)
    killed_by_signal = child.returncode < 0
    ended_by_windows = child.returncode >= 0xC0000000  # NTSTATUS of an illegal instruction or another crash
    return not (killed_by_signal or ended_by_windows)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Available bytes of main memory; None if the system does not report them."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        # Linux counts what it can take back from caches, which free pages do not.
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, macOS no count of free pages
        return None


class Runtime:
    """Device, precision, seed, progress and snapshots of one learner, and the processes that it learns in."""

    def __init__(
        self,
        config: RuntimeConfig | None = None,
        seed: int = 0,
        reporter: Reporter | None = None,
        snapshots: Snapshots | None = None,
        tracker: Tracker | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.config = config or RuntimeConfig()
        self.seed = seed
        self.reporter = reporter or Reporter()
        self.snapshots = snapshots
        self.tracker = tracker
        self.processes = processes or Processes()

    @cached_property
    def device(self) -> torch.device:
        if not self.processes.alone:
            return self.processes.device
        name = self.config.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.empty(0, device=name, dtype=torch.float64)
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            raise ConfigError(
                f"device {name!r} cannot be used here ({str(error).splitlines()[0]}); try device=cpu"
            ) from None
        return torch.device(name)

    def check(self) -> None:
        """Raise now if the device or the precision cannot be used, rather than when training starts."""
        reduced = self.config.precision != "32-true"
        if self.device.type == "cpu" and reduced and not reduced_precision_works():
            raise ConfigError(
                f"precision {self.config.precision} crashes on this CPU, whose bfloat16 units do not work; "
                "use precision=32-true, or set the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"
            )

    @cached_property
    def fabric(self) -> Fabric:
        """Fabric for what this process trains by itself; imported only here because the import takes seconds."""
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments.lightning import LightningEnvironment
        from lightning_fabric.strategies.single_device import SingleDeviceStrategy

        self.check()
        accelerator = "cuda" if self.device.type == "cuda" else "cpu"
        settings: dict[str, Any] = {
            "accelerator": accelerator,
            "devices": [self.device.index or 0] if accelerator == "cuda" else 1,
            "precision": self.config.precision,
        }
        if not self.processes.alone:  # Fabric would take the environment of the other processes for its own
            settings |= {"strategy": SingleDeviceStrategy(self.device), "plugins": LightningEnvironment()}
        return Fabric(**settings)

    def fabric_for(self, divided: bool) -> Fabric:
        """Fabric for a training whose batches processes share out, or for one that each does by itself."""
        shared = self.processes.fabric
        return shared if divided and shared is not None else self.fabric

    @property
    def seeded_devices(self) -> list[torch.device]:
        """Devices besides the CPU whose random state must be restored for the caller."""
        return [self.device] if self.device.type == "cuda" else []

    @property
    def free_memory(self) -> int | None:
        """Free bytes of the device; None if it does not report them."""
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return available_memory() if self.device.type == "cpu" else None

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.config.channels_last else torch.contiguous_format

    def place(self, module: ModuleType) -> ModuleType:
        """A module on this device, in this memory order."""
        module.to(self.device)
        module.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        return module

    def compiled(self, module: nn.Module) -> nn.Module:
        """The module, compiled for training if configured."""
        return torch.compile(module) if self.config.compile else module  # type: ignore[return-value]

    def seed_for(self, *parts: object) -> int:
        """A seed for one purpose within this run."""
        return derive_seed(self.seed, *parts)

    @contextmanager
    def seeded(self, *parts: object) -> Iterator[None]:
        """Seed torch's global generator for one purpose, and restore its state afterwards.

        Initial weights and dropout draw from it. Other threads that do the same wait, so keep what is done here short;
        everything else draws from `generator`.
        """
        with _GLOBAL_RANDOMNESS, torch.random.fork_rng(devices=self.seeded_devices):
            # Not torch.manual_seed: it also seeds devices that are not used, and formats the stack for each of them,
            # which takes longer than a small training step.
            torch.default_generator.manual_seed(self.seed_for(*parts))
            if self.seeded_devices:
                torch.cuda.manual_seed_all(self.seed_for(*parts))
            yield

    def generator(self, *parts: object) -> torch.Generator:
        """A CPU generator for one purpose within this run."""
        return torch.Generator().manual_seed(self.seed_for(*parts))
