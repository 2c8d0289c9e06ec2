"""Devices, precision, memory order, compilation, and the caller's random numbers."""

from __future__ import annotations

import resource
import shutil
import sys
from pathlib import Path

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.errors import ConfigError
from adagauss.utils import runtime
from adagauss.utils.runtime import (
    Runtime,
    RuntimeConfig,
    available_memory,
    cpu_bf16_speedup,
    derive_seed,
    resolve_precision,
)
from tests.contracts.toy import quick_method, scores, toy_tasks
from tests.faults.budget import TORTURE
from tests.processes import printed


def learned(tasks: int = 2, **settings: object) -> Learner:
    settled = Runtime(RuntimeConfig.of(settings))
    learner = Learner(quick_method("adagauss"), (1, 8, 8), (0.3,), (0.4,), settled)
    for task in toy_tasks()[:tasks]:
        learner.learn(task)
    return learner


def test_seeds_depend_on_every_part() -> None:
    seeds = {derive_seed(0, "a", 1), derive_seed(1, "a", 1), derive_seed(0, "b", 1), derive_seed(0, "a", 2)}
    assert len(seeds) == 4
    assert derive_seed(0, "a", 1) in seeds


def test_convolutions_are_kept_in_channels_last_order() -> None:
    weight = learned().network.extractor.trunk.get_parameter("conv2.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    plain = learned(channels_last=False).network.extractor.trunk.get_parameter("conv2.weight")
    assert plain.is_contiguous()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_half_precision_on_a_cpu_learns_close_to_full_precision(precision: str) -> None:
    if cpu_bf16_speedup() == 0:
        pytest.skip("bfloat16 does not work on this CPU")
    full, half = scores(learned(1)), scores(learned(1, device="cpu", precision=precision))
    assert not torch.equal(full, half)
    torch.testing.assert_close(half, full, rtol=0.3, atol=0.3 * float(full.abs().max()))


@pytest.mark.parametrize(("speedup", "expected"), [(0.0, "32-true"), (0.6, "32-true"), (2.0, "bf16-mixed")])
def test_auto_uses_bfloat16_on_a_cpu_where_it_is_faster(
    speedup: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "cpu_bf16_speedup", lambda: speedup)
    assert resolve_precision("auto", torch.device("cpu")) == expected


def test_precision_that_crashes_on_this_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cpu_bf16_speedup", lambda: 0.0)
    with pytest.raises(ConfigError, match="use precision=32-true"):
        learned(device="cpu", precision="bf16-mixed")


def test_a_crash_of_the_measurement_counts_as_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "BF16_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert runtime.cpu_bf16_speedup.__wrapped__() == 0


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="compilation on a CPU needs a C++ compiler")
@pytest.mark.skipif(TORTURE == 1, reason="compiling takes half a minute: make torture")
def test_a_compiled_network_learns_the_same() -> None:
    plain, compiled = scores(learned(1)), scores(learned(1, compile=True))
    torch.testing.assert_close(compiled, plain, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("device", ["mars", "cuda:7"])
def test_a_device_that_is_not_there_names_one_that_is(device: str) -> None:
    with pytest.raises(ConfigError, match="device=cpu"):
        Runtime(RuntimeConfig(device=device)).check()


def test_the_callers_random_numbers_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    learned()
    assert torch.equal(torch.rand(4), expected)


def system_of(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal: 99 kB\nMemAvailable:      42 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


V2 = {
    "proc/self/cgroup": "0::/user.slice/job\n",
    "sys/fs/cgroup/user.slice/job/memory.max": "max\n",
    "sys/fs/cgroup/user.slice/job/memory.current": "5000\n",
    "sys/fs/cgroup/user.slice/memory.max": "30000\n",
    "sys/fs/cgroup/user.slice/memory.current": "20000\n",
    "sys/fs/cgroup/user.slice/memory.stat": "anon 7\ninactive_file 1000\n",
}
V1 = {
    "proc/self/cgroup": "5:devices:/\n4:memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "2000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 500\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "100\n",
}
CONTAINER = {  # the group of the process is the root of what it sees
    "proc/self/cgroup": "0::/../../elsewhere\n",
    "sys/fs/cgroup/memory.max": "8000\n",
    "sys/fs/cgroup/memory.current": "9000\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [({}, 42 * 1024), (V2, 11_000), (V1, 7_500), (CONTAINER, 0)],
    ids=["none", "v2", "v1", "root"],
)
def test_limits_of_control_groups_count_as_available_memory(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    assert available_memory(system_of(tmp_path, files)) == expected


def print_memory_within(limit: int, root: Path) -> None:
    """Print the available memory of a process that may use so many addresses."""
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.stdout.write(str(available_memory(root)))


def test_a_limit_of_address_space_counts_as_available_memory(tmp_path: Path) -> None:
    pages = 2**36 // resource.getpagesize() - 1000
    system_of(tmp_path, {"proc/meminfo": f"MemAvailable: {2**40} kB\n", "proc/self/statm": f"{pages} 5 5\n"})
    assert int(printed(print_memory_within, 2**36, tmp_path)) == 1000 * resource.getpagesize()


def test_memory_that_is_not_reported_is_unknown(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    assert available_memory(system_of(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\n"})) is None
