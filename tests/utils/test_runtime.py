"""Devices, precision, memory order, compilation, and the caller's random numbers."""

from __future__ import annotations

import shutil

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.errors import ConfigError
from adagauss.utils.runtime import Runtime, RuntimeConfig, derive_seed
from tests.contracts.toy import quick_method, scores, toy_tasks
from tests.faults.budget import TORTURE


def learned(tasks: int = 2, **settings: object) -> Learner:
    runtime = Runtime(RuntimeConfig.of(settings))
    learner = Learner(quick_method("adagauss"), (1, 8, 8), (0.3,), (0.4,), runtime)
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
def test_mixed_precision_on_a_cpu_is_refused(precision: str) -> None:
    with pytest.raises(ConfigError, match="needs a CUDA device: use precision=32-true"):
        learned(device="cpu", precision=precision)


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
