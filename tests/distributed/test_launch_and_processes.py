"""Several processes, tested within one: shares of a batch, refused layouts, and errors of lost processes."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from joblib import cpu_count  # type: ignore[import-untyped]
from torch import nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from adagauss.data.images import ArrayImages
from adagauss.distributed import launch as launching
from adagauss.distributed.batch_norm import normalised
from adagauss.distributed.launch import check_devices, explained
from adagauss.distributed.processes import Processes, decode, encode
from adagauss.errors import AdagaussError, ConfigError, DataError, ProcessError
from adagauss.utils.runtime import RuntimeConfig
from tests.cli.conftest import SMALL, Command, adagauss  # noqa: F401  (a fixture)

CPU = RuntimeConfig(device="cpu")


def of_two(rank: int) -> Processes:
    """One of two processes, without the other."""
    processes = Processes()
    processes.rank, processes.world = rank, 2
    return processes


def test_processes_take_turns_with_the_rows_of_a_batch() -> None:
    assert [of_two(rank).divide(5).rows.tolist() for rank in (0, 1)] == [[0, 2, 4], [1, 3]]
    assert of_two(1).divide(1).rows.tolist() == []


def test_chosen_rows_stay_where_they_are() -> None:
    batch, chosen = torch.arange(6) * 10, torch.tensor([5, 0, 2])
    for rank, expected in ((0, [0, 20]), (1, [50])):
        division = of_two(rank).divide(6)
        own, held = division.chosen(batch[division.rows], chosen)
        assert own.tolist() == expected
        assert held.owners.tolist() == [1, 0, 0]
        assert batch[chosen][held.rows].tolist() == own.tolist()


def test_alone_nothing_is_sent_and_gradients_pass() -> None:
    alone = Processes()
    rows = torch.ones(3, 2, requires_grad=True)
    assert alone.divide(3).all_gather(rows) is rows
    assert alone.broadcast(lambda: None) is None


def test_objects_are_sent_as_json_and_safetensors_and_never_pickled() -> None:
    state = {"means": torch.eye(2, dtype=torch.float64), "none": torch.zeros(0, 3), "step": torch.tensor(3)}
    tensors, labels, missing = decode(encode((state, ["cat", 1, 0.5], None)))
    assert (labels, missing) == (["cat", 1, 0.5], None)
    assert all(torch.equal(tensors[name], state[name]) and tensors[name].dtype == state[name].dtype for name in state)
    assert torch.equal(decode(encode(torch.arange(3))), torch.arange(3))
    with pytest.raises(TypeError, match="object cannot be sent to other processes"):
        encode({"value": object()})


@pytest.mark.parametrize(("affine", "momentum"), [(True, 0.1), (True, None), (False, 0.3)])
def test_shared_batch_norm_is_batch_norm(affine: bool, momentum: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    ours, torchs = (nn.BatchNorm2d(3, momentum=momentum, affine=affine) for _ in range(2))
    if affine:
        nn.init.normal_(ours.weight, 1, 0.3, generator=generator)
        nn.init.normal_(ours.bias, generator=generator)
        torchs.load_state_dict(ours.state_dict())
    for _ in range(2):
        one = (2 + torch.randn(5, 3, 4, 2, generator=generator)).requires_grad_()
        other, weights = one.detach().clone().requires_grad_(), torch.randn(5, 3, 4, 2, generator=generator)
        (normalised(ours, Processes(), one) * weights).sum().backward()  # type: ignore[no-untyped-call]
        (torchs(other) * weights).sum().backward()
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    for name, value in torchs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)
    for mine, theirs in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    empty = normalised(ours, Processes(), torch.zeros(0, 3, 4, 2))
    assert empty.shape == (0, 3, 4, 2)


def test_images_in_memory_are_sent_by_value() -> None:
    images = ArrayImages(np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3))
    received = pickle.loads(pickle.dumps(images))
    assert torch.equal(received.pixels, images.pixels)


@pytest.mark.parametrize(
    ("devices", "config", "sentence"),
    [
        (cpu_count() + 1, CPU, f"this machine has {cpu_count()} CPU cores: request fewer"),
        (0, CPU, "at least 1"),
        (2, RuntimeConfig(device="cuda:1"), "'cuda:1' is one device, but 2 were requested: set device=cuda"),
        (2, RuntimeConfig(device="cpu", compile=True), "set compile=false"),
    ],
)
def test_impossible_numbers_of_devices_are_refused(devices: int, config: RuntimeConfig, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_devices(devices, config)
    assert sentence in str(refused.value)


def test_neither_a_prompt_nor_torchrun_can_start_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "cpu_count", lambda: 2)
    check_devices(2, CPU)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(ConfigError, match="write a script"):
        check_devices(2, CPU)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match="not by torchrun"):
        check_devices(1, CPU)


def test_a_lost_process_is_explained_and_other_errors_are_left_alone() -> None:
    with pytest.raises(ProcessError, match="another process ended or does not respond"), explained():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), explained():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_the_error_of_a_process_is_raised_in_the_parent(tmp_path: Path) -> None:
    (tmp_path / "1").write_text(json.dumps(["DataError", "the task has no images"]), encoding="utf-8")
    with pytest.raises(DataError, match="the task has no images"):
        launching._explain(tmp_path, 2, ProcessExitedException("ended", 1, os.getpid(), 2))
    with pytest.raises(
        ProcessError, match="process 0 of 2 was terminated by SIGKILL; the system may have run out of memory"
    ):
        launching._explain(tmp_path, 2, ProcessExitedException("ended", 0, os.getpid(), -9, "SIGKILL"))
    with pytest.raises(ProcessError, match="if __name__ == '__main__'"):
        launching._explain(tmp_path, 2, ProcessExitedException("ended", 0, os.getpid(), 2))
    raised = ProcessRaisedException("Traceback:\nZeroDivisionError: division by zero\n", 0, os.getpid())
    with pytest.raises(RuntimeError, match="process 0 of 2: ZeroDivisionError: division") as unforeseen:
        launching._explain(tmp_path, 2, raised)
    assert not isinstance(unforeseen.value, AdagaussError)


def in_this_process(work: launching.Work, devices: int, config: RuntimeConfig, *arguments: Any) -> None:
    """Replaces `launch`: one process does all the work."""
    work(Processes(), *arguments)


def test_the_command_runs_in_processes_and_shows_their_result(
    adagauss: Command,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def noted(work: launching.Work, devices: int, config: RuntimeConfig, *arguments: Any) -> None:
        seen.append(devices)
        in_this_process(work, devices, config, *arguments)

    monkeypatch.setattr(launching, "cpu_count", lambda: 2)
    monkeypatch.setattr(launching, "launch", noted)
    short = ("run", "-d", "digits", "--set", "stream.classes=2", "--tasks", "1", *SMALL, "--out", tmp_path / "run")
    outcome = adagauss(*short, "--devices", "2")
    assert outcome.code == 0, outcome.err
    assert seen == [2]
    assert "Run folder:" in outcome.out
    outcome = adagauss(*short[:-1], tmp_path / "other", "--devices", "3")
    assert (outcome.code, "this machine has 2 CPU cores: request fewer" in outcome.said) == (2, True)
