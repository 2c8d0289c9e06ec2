"""Devices, precision, memory order, compilation, and the caller's random numbers."""

from __future__ import annotations

import shutil

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.errors import ConfigError
from adagauss.utils import runtime
from adagauss.utils.runtime import Runtime, RuntimeConfig, cpu_bf16_speedup, derive_seed, resolve_precision
from tests.contracts.toy import quick_method, scores, toy_tasks
from tests.faults.budget import TORTURE


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
