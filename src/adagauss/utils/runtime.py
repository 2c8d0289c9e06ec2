"""Device, precision and random seeds of a learner."""

from __future__ import annotations

import hashlib
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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


Precision = Literal["32-true", "16-mixed", "bf16-mixed"]
ModuleType = TypeVar("ModuleType", bound=nn.Module)

_GLOBAL_RANDOMNESS = threading.RLock()
"""Held while torch's own generator is used: there is one for all threads, and layers draw from no other."""


class RuntimeConfig(Config):
    """Device and precision of the computation; they change results only by rounding."""

    device: str = "auto"
    """``auto`` (a CUDA device if there is one), ``cpu``, ``cuda`` or ``cuda:1``; statistics need float64."""
    precision: Literal["auto"] | Precision = "32-true"
    """Precision of training steps; statistics are float64. ``auto`` uses bfloat16 on CUDA devices, and on a CPU if a
    short measurement shows that it is faster there. On a CPU, ``16-mixed`` is bfloat16 as well."""
    channels_last: bool = True
    """Keep images and convolutions in channels-last memory order: faster on CPUs and tensor cores."""
    deterministic: bool = False
    """On a GPU, use only deterministic kernels, which are slower, so that repeated runs are bit-identical. Otherwise
    cuDNN measures which algorithm is fastest. Convolutions in float32 use TF32 either way, as is usual in torch."""
    compile: bool = False
    """Compile the extractor for training (`torch.compile`): about a minute at the start of every task."""


class Snapshots(Protocol):
    """Storage of training states until the end of a task, so that a killed run loses little work."""

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Load the tensors and facts of the last save for ``stage``, if any."""

    def offer(self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save now if enough time has passed since the last save."""


class Tracker(Protocol):
    """Records the losses of a training."""

    def epoch(self, stage: str, epoch: int, losses: Mapping[str, float]) -> None:
        """Record the mean of each loss in an epoch, counted from 0; a repeated epoch is reported again."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device without waiting for it: a GPU reads pinned memory while the CPU goes on."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def derive_seed(*parts: object) -> int:
    """Derive a seed that depends only on the given parts: ``derive_seed(run_seed, "task 3", "epoch", 7)``."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


BF16_PROBE = """
import time, torch
images = torch.rand(32, 64, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
network = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3))
network = network.to(memory_format=torch.channels_last)
def seconds(enabled):
    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            network(images).sum().backward()
    def timed():
        start = time.perf_counter()
        step()
        return time.perf_counter() - start
    step()
    return min(timed() for _ in range(5))
print(seconds(False) / seconds(True))
"""
FASTER = 1.2
"""Speed-up from which ``precision=auto`` uses bfloat16 on a CPU."""


@cache
def cpu_bf16_speedup() -> float:
    """Return how many times faster bfloat16 trains on this CPU than float32, measured once; 0 if it does not work.

    A child process measures it, because a crash cannot be caught: a virtual machine may announce matrix units (AMX)
    that it does not support, and the first product then kills the process.
    """
    # Without -P, Python would import modules of the current folder.
    child = subprocess.run([sys.executable, "-P", "-c", BF16_PROBE], capture_output=True, text=True, check=False)
    return float(child.stdout) if child.returncode == 0 else 0.0


def resolve_precision(precision: Literal["auto"] | Precision, device: torch.device) -> Precision:
    """Return the precision for Fabric; ``auto`` is resolved, and bfloat16 that crashes on this CPU is an error."""
    if precision == "auto":
        fast = torch.cuda.is_bf16_supported() if device.type == "cuda" else cpu_bf16_speedup() >= FASTER
        return "bf16-mixed" if fast else "32-true"
    if precision != "32-true" and device.type == "cpu" and cpu_bf16_speedup() == 0:
        raise ConfigError(f"precision {precision} crashes on this CPU: use precision=32-true, or auto")
    return precision


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of main memory that this process can still take; None if the system does not report them.

    On Linux, this is the minimum over the system, its control groups (versions 1 and 2) and ``ulimit -v``.
    """

    def number(name: str, key: str = "") -> int | None:
        """Read the number in a file below the root, or in its line that starts with ``key``."""
        try:
            lines = [line.split() for line in (root / name).read_text(encoding="ascii").splitlines()]
            return next(int(line[1] if key else line[0]) for line in lines if not key or line[0] == key)
        except (OSError, StopIteration, ValueError, IndexError):
            return None  # no such limit

    system = number("proc/meminfo", "MemAvailable:")
    left = [] if system is None else [1024 * system]
    for mount, limit, used, reclaimable in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for group in _control_groups(root):
            most, taken = (number(f"{mount}{group}/{name}") for name in (limit, used))
            if most is not None and taken is not None:
                left.append(most - taken + (number(f"{mount}{group}/memory.stat", reclaimable) or 0))
    most, pages = resource.getrlimit(resource.RLIMIT_AS)[0], number("proc/self/statm")
    if most != resource.RLIM_INFINITY and pages is not None:
        left.append(most - pages * resource.getpagesize())
    return max(0, min(left)) if left else None


def _control_groups(root: Path) -> set[str]:
    """Return the control groups of this process and those that contain them; "" is the outermost."""
    groups = {""}
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if (not kinds or "memory" in kinds.split(",")) and ".." not in path:
                groups |= {str(place).rstrip("/") for place in (Path(path), *Path(path).parents)}
    return groups


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
        if self.config.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = not self.config.deterministic
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
        """Raise if the device or the precision cannot be used."""
        resolve_precision(self.config.precision, self.device)

    @cached_property
    def fabric(self) -> Fabric:
        """Fabric for training in this process alone; imported only here because the import takes seconds."""
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments.lightning import LightningEnvironment
        from lightning_fabric.strategies.single_device import SingleDeviceStrategy

        accelerator = "cuda" if self.device.type == "cuda" else "cpu"
        settings: dict[str, Any] = {
            "accelerator": accelerator,
            "devices": [self.device.index or 0] if accelerator == "cuda" else 1,
            "precision": resolve_precision(self.config.precision, self.device),
        }
        if not self.processes.alone:  # by default, Fabric would join the other processes
            settings |= {"strategy": SingleDeviceStrategy(self.device), "plugins": LightningEnvironment()}
        return Fabric(**settings)

    @property
    def free_memory(self) -> int | None:
        """Free bytes of the device; None if it does not report them."""
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return available_memory() if self.device.type == "cpu" else None

    @cached_property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.config.channels_last else torch.contiguous_format

    def place(self, module: ModuleType) -> ModuleType:
        """Move a module to this device and memory order."""
        module.to(self.device)
        module.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        return module

    def compiled(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Compile a function for training if configured."""
        return torch.compile(function) if self.config.compile else function

    def seed_for(self, *parts: object) -> int:
        """Derive a seed for one purpose within this run."""
        return derive_seed(self.seed, *parts)

    @contextmanager
    def seeded(self, *parts: object) -> Iterator[None]:
        """Seed torch's global generator for one purpose, and restore its state afterwards.

        Initial weights and dropout draw from it. Other threads that do the same wait, so keep what is done here short;
        everything else draws from `generator`.
        """
        cuda = [self.device] if self.device.type == "cuda" else []
        with _GLOBAL_RANDOMNESS, torch.random.fork_rng(devices=cuda):
            # Not torch.manual_seed: it also seeds devices that are not used, and formats the stack for each of them,
            # which takes longer than a small training step.
            torch.default_generator.manual_seed(self.seed_for(*parts))
            if cuda:
                torch.cuda.manual_seed_all(self.seed_for(*parts))
            yield

    def generator(self, *parts: object) -> torch.Generator:
        """Create a CPU generator for one purpose within this run."""
        return torch.Generator().manual_seed(self.seed_for(*parts))
