"""After forgetting, nothing that was kept of the class alone is left in what is known, or in the saved file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.methods import make_method, methods
from tests.contracts.toy import taught, thorough, toy_images

SECRET = "platypus"
EVERY = thorough(sorted(methods()))
REMEMBERING = [name for name in EVERY if make_method(name).memory.kind != "none"]


def with_secret(name: str) -> Learner:
    learner = taught(name, 2)
    learner.rename("one", SECRET)
    return learner


def traces(tensor: Tensor, row: int) -> list[bytes]:
    """Pairs of neighbouring numbers of a row, as a file has them in float64 and in float32: too long for chance."""
    found = []
    for values in (tensor[row].double(), tensor[row].float()):
        for pair in values.unfold(0, 2, 1):
            if bool((pair.abs() > 1e-6).all()) and float(pair[0]) != float(pair[1]):
                found.append(pair.contiguous().numpy().tobytes())
    return found


def saved(learner: Learner, path: Path) -> bytes:
    learner.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", EVERY)
def test_the_name_of_a_forgotten_class_is_not_in_the_file(name: str, tmp_path: Path) -> None:
    learner = with_secret(name)
    assert SECRET.encode() in saved(learner, tmp_path / "before")
    learner.forget([SECRET])
    assert SECRET.encode() not in saved(learner, tmp_path / "after")


@pytest.mark.parametrize("name", REMEMBERING)
def test_no_statistic_of_a_forgotten_class_is_in_the_file(name: str, tmp_path: Path) -> None:
    learner = with_secret(name)
    memory, row = learner.memory, learner.classes.index(SECRET)
    tokens = traces(memory.means, row) + (traces(memory.packed, row) if memory.covariance != "none" else [])
    before = saved(learner, tmp_path / "before")
    assert sum(token in before for token in tokens) >= len(tokens) // 2
    learner.forget([SECRET])
    after = saved(learner, tmp_path / "after")
    assert [token for token in tokens if token in after] == []


@pytest.mark.parametrize("name", EVERY)
def test_no_column_or_output_of_a_forgotten_class_is_in_the_file(name: str, tmp_path: Path) -> None:
    learner = with_secret(name)
    column = learner.classes.index(SECRET)
    state = learner.state.states["classifier"].state_dict()
    classes = len(learner.classes)
    axes = [(tensor, axis) for tensor in state.values() for axis in range(tensor.ndim) if tensor.shape[axis] == classes]
    numbers = torch.cat(
        [tensor.select(axis, column).flatten().double() for tensor, axis in axes if tensor.dtype == torch.float64]
        or [torch.zeros(0, dtype=torch.float64)]
    )
    tokens = [number.numpy().tobytes() for number in numbers if abs(float(number)) > 1e-6]
    rows = [tensor.transpose(0, axis) for tensor, axis in axes if tensor.dtype == torch.float32 and tensor.ndim > 1]
    tokens += [token for tensor in rows for token in traces(tensor.reshape(classes, -1), column)]
    assert tokens
    learner.forget([SECRET])
    after = saved(learner, tmp_path / "after")
    assert [token for token in tokens if token in after] == []


@pytest.mark.parametrize("name", REMEMBERING)
def test_what_remains_does_not_depend_on_the_forgotten_class(name: str) -> None:
    """The classifier is computed again from the memory, so other covariances contain nothing of the forgotten one."""
    learner, other = taught(name, 2), taught(name, 2)
    bank = other.memory.copy()
    bank.means[1] += 1.0
    bank.packed[1] *= 2.0
    other.state = type(other.state)(other.network, bank, other.state.states, other.tasks)
    for one in (learner, other):
        one.forget(["one"])
    images = toy_images(test=True).images
    assert torch.equal(learner.scores(learner.features(images)), other.scores(other.features(images)))
