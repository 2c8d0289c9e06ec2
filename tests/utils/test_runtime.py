"""Devices, precision, memory order, compilation, and the caller's random numbers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.errors import ConfigError
from adagauss.utils.runtime import Runtime, RuntimeConfig, derive_seed, reduced_precision_works
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


@pytest.mark.parametrize("precision", ["bf16-mixed"])
def test_half_precision_learns_close_to_full_precision(precision: str) -> None:
    if not reduced_precision_works():
        pytest.skip("this CPU crashes in bfloat16")
    full, half = scores(learned()), scores(learned(precision=precision))
    assert torch.isfinite(half).all()
    assert (full.argmax(1) == half.argmax(1)).double().mean() > 0.7


DEATH_BY_SIGNAL = "import os, signal; os.kill(os.getpid(), getattr(signal, 'SIGILL', signal.SIGTERM))"
DEATH_BY_WINDOWS = "import ctypes; ctypes.windll.kernel32.ExitProcess(0xC000001D)"


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that puts another program in the place of the one that tries reduced precision."""
    reduced_precision_works.cache_clear()
    yield lambda program: monkeypatch.setattr("adagauss.utils.runtime.REDUCED_PRECISION_PROBE", program)
    reduced_precision_works.cache_clear()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_a_precision_that_would_end_the_process_is_refused(precision: str, probe: Callable[[str], None]) -> None:
    probe(DEATH_BY_WINDOWS if sys.platform == "win32" else DEATH_BY_SIGNAL)
    with pytest.raises(ConfigError, match=r"precision=32-true.*ONEDNN_MAX_CPU_ISA"):
        learned(device="cpu", precision=precision)
    assert learned(1, precision="32-true").classes


def test_precision_is_tried_once(probe: Callable[[str], None], tmp_path: Path) -> None:
    probe(f"open({str(tmp_path / 'tries')!r}, 'a').write('x')")
    for _ in range(3):
        Runtime(RuntimeConfig(device="cpu", precision="bf16-mixed")).check()
        Runtime(RuntimeConfig(device="cpu")).check()
    assert (tmp_path / "tries").read_text(encoding="utf-8") == "x"


def test_modules_in_the_current_folder_are_not_run(
    probe: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wave.py").write_text("open('harmed', 'w')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    probe("import wave")
    assert reduced_precision_works()
    assert not (tmp_path / "harmed").exists()


def test_a_probe_that_fails_without_dying_refuses_nothing(probe: Callable[[str], None]) -> None:
    probe("raise SystemExit(1)")
    assert reduced_precision_works()


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
