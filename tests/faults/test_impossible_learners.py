"""Files with a right digest whose content cannot have been learned: loading them raises an error."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.core.state import State
from adagauss.errors import CheckpointError, NumericalError
from adagauss.utils.checkpoint import load_tensors, save_tensors
from tests.contracts.toy import taught, toy_images

METHODS = ("adagauss", "sdc", "ewc", "efc", "pass", "acil", "dsal", "exact", "ranpac")
"""Between them they have every kind of state."""
BASES = ("SharedState", "Scorer", "PatchFeatures")
"""Kinds of state of which there are only more special ones."""

Content = tuple[dict[str, Tensor], dict[str, Any]]


def kinds(of: type[State] = State) -> Iterator[type[State]]:
    """Every kind of state of the library that holds something."""
    for kind in of.__subclasses__():
        yield from kinds(kind)
        if kind.__module__.startswith("adagauss.") and kind.__name__ not in BASES:
            yield kind


def learned(name: str) -> Learner:
    """A learner of one task."""
    return taught(name, 1, None)


def states(learner: Learner) -> dict[str, State]:
    known = learner.state
    return {
        name: module
        for name, module in known.named_modules()
        if isinstance(module, State) and not name.startswith("network")
    }


def test_these_methods_have_every_kind_of_state() -> None:
    found = {type(state) for name in METHODS for state in states(learned(name)).values()}
    assert found == set(kinds())


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_every_kind_of_state_names_its_axes(kind: type[State]) -> None:
    assert kind.dims


@pytest.mark.parametrize("name", METHODS)
def test_every_saved_buffer_has_its_axes_named(name: str) -> None:
    for state in states(learned(name)).values():
        assert set(state.dims) == set(state._buffers) - state._non_persistent_buffers_set
        for buffer, letters in state.dims.items():
            assert len(letters) == state.get_buffer(buffer).ndim


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Content]:
    folder = tmp_path_factory.mktemp("learners")

    @functools.cache
    def read(name: str) -> Content:
        learned(name).save(folder / name)
        return load_tensors(folder / name, "learner")

    def fresh(name: str) -> Content:
        tensors, facts = read(name)
        return {key: tensor.clone() for key, tensor in tensors.items()}, copy.deepcopy(facts)

    return fresh


def refuse(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> str:
    """The sentence with which a file is refused."""
    save_tensors(path / "file", "learner", tensors, facts)
    with pytest.raises(CheckpointError) as raised:
        Learner.load(path / "file")
    sentence = str(raised.value)
    assert len(sentence.split()) > 6, sentence
    return sentence


@pytest.mark.parametrize("name", METHODS)
def test_a_number_that_is_not_finite_is_refused_wherever_it_is(
    name: str, written: Callable[[str], Content], tmp_path: Path
) -> None:
    tensors, facts = written(name)
    network = [key for key in tensors if key.startswith("network.") and tensors[key].is_floating_point()]
    others = [
        key
        for key, tensor in tensors.items()
        if not key.startswith("network.") and tensor.is_floating_point() and tensor.numel()
    ]
    for place, key in enumerate([*network[:1], *network[-1:], *others]):
        bad = {**tensors, key: tensors[key].clone()}
        bad[key].view(-1)[-1] = (torch.nan, torch.inf)[place % 2]
        refuse(tmp_path, bad, facts)


@pytest.mark.parametrize("name", METHODS)
def test_a_cut_row_or_column_is_refused_wherever_it_is(
    name: str, written: Callable[[str], Content], tmp_path: Path
) -> None:
    tensors, facts = written(name)
    for key, tensor in tensors.items():
        if key.startswith("network.") and key != "network.head.blocks.0.weight":
            continue
        for axis in range(tensor.ndim if tensor.numel() else 0):
            if key.endswith(".confusions") and axis == 0:  # forgetting a class removes rows as well
                continue
            refuse(tmp_path, {**tensors, key: tensor.narrow(axis, 0, tensor.shape[axis] - 1)}, facts)


def negated(tensor: Tensor) -> Tensor:
    return -tensor


def zeroed(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor)


def tenfold(tensor: Tensor) -> Tensor:
    return 10 * tensor


def many(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, 2**50)


def endless(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, 2**63 - 1)


def huge(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, 2**40)


@pytest.mark.parametrize(
    ("name", "key", "change", "reason"),
    [
        ("adagauss", "memory.counts", zeroed, "count below 1"),
        ("adagauss", "memory.counts", negated, "count below 1"),
        ("adagauss", "memory.counts", many, "above 2^48"),
        ("adagauss", "memory.counts", endless, "at most 9.01e+15 is possible"),
        ("adagauss", "memory.packed", negated, "is not positive semi-definite"),
        ("adagauss", "network.extractor.trunk.bn1.running_var", negated, "variances below zero"),
        ("exact", "network.extractor.trunk.features.deviation", negated, "variances below zero"),
        ("exact", "parts.classifier.sums.counts", zeroed, "count below 1"),
        ("exact", "parts.classifier.sums.counts", tenfold, "more images than there are"),
        ("exact", "parts.classifier.sums.gram", negated, "a sum of squares is negative"),
        ("exact", "parts.classifier.sums.cross", tenfold, "the sum of a class does not fit"),
        ("exact", "parts.classifier.sums.total", huge, "the sum over all images does not fit"),
        ("exact", "parts.classifier.choice.hits", huge, "right more often than tried"),
        ("exact", "parts.classifier.choice.tried", torch.logical_not, "no candidate is left"),
        ("exact", "parts.classifier.choice.weights", negated, "weighted below zero"),
        ("ranpac", "parts.classifier.random.drawn", huge, "random features are not those"),
        ("dsal", "parts.classifier.main.gram", negated, "a sum of squares is negative"),
        ("ewc", "parts.representation/terms/ewc.fisher", negated, "fisher holds numbers below zero"),
        ("pass", "parts.representation/terms/prototypes.radius", negated, "radius holds numbers below zero"),
    ],
)
def test_an_impossible_number_is_refused_with_its_reason(
    name: str,
    key: str,
    change: Callable[[Tensor], Tensor],
    reason: str,
    written: Callable[[str], Content],
    tmp_path: Path,
) -> None:
    tensors, facts = written(name)
    assert reason in refuse(tmp_path, {**tensors, key: change(tensors[key])}, facts)


def test_one_covariance_with_a_negative_direction_is_found_among_all(
    written: Callable[[str], Content], tmp_path: Path
) -> None:
    learner = taught("adagauss", 1)
    matrices = learner.memory.covariances
    values, vectors = torch.linalg.eigh(matrices[1])
    values[-1] *= -1
    matrices[1] = vectors @ torch.diag(values) @ vectors.T
    tensors, facts = written("adagauss")
    tensors["memory.packed"] = learner.memory.with_statistics(learner.memory.means, matrices).packed
    assert "the covariance of 'one' is not positive semi-definite" in refuse(tmp_path, tensors, facts)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("knowledge", "tasks"), [["zero", "zero"]]),
        (("knowledge", "tasks"), [["zero"]]),
        (("knowledge", "tasks"), [["zero", None]]),
        (("knowledge", "tasks"), [["zero", ["one"]]]),
        (("knowledge", "tasks"), [["zero", float("nan")]]),
        (("knowledge", "tasks"), "zero"),
        (("knowledge", "remembered"), ["zero"]),
        (("knowledge", "remembered"), ["zero", "zero"]),
        (("knowledge", "remembered"), ["one", "two"]),
        (("knowledge", "head"), [[10**12, 0]]),
        (("knowledge", "head"), [[2, 10**12]]),
        (("knowledge", "head"), [[-2, 0]]),
        (("knowledge", "head"), []),
        (("knowledge", "parts"), ["classifier", "nothing"]),
        (("knowledge", "parts"), []),
        (("knowledge",), []),
        (("shape",), [1, 10**9, 10**9]),
        (("shape",), [1, 8]),
        (("mean",), []),
        (("std",), [0.0]),
        (("input", "size"), 10**9),
        (("input", "size"), 4096),
        (("input", "mean"), [0.1, 0.2]),
        (("seed",), "0"),
        (("about",), None),
        (("method",), {}),
        (("method", "backbone"), {"name": "convnet", "features": 10**9}),
        (("method", "memory"), {"kind": "none"}),
        (("method", "classifier"), {"kind": "nearest_mean"}),
    ],
)
def test_impossible_facts_are_refused(
    place: tuple[str, ...], value: object, written: Callable[[str], Content], tmp_path: Path
) -> None:
    tensors, facts = written("adagauss")
    inner = facts
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    refuse(tmp_path, tensors, facts)
    del inner[place[-1]]
    if place[-1] not in ("backbone", "size", "memory", "classifier"):
        refuse(tmp_path, tensors, facts)


def test_scores_that_are_not_finite_are_an_error(written: Callable[[str], Content], tmp_path: Path) -> None:
    tensors, facts = written("adagauss")
    for key, tensor in tensors.items():
        if key.startswith("network.") and tensor.is_floating_point():
            tensor.fill_(3e38)
    save_tensors(tmp_path / "file", "learner", tensors, facts)
    with pytest.raises(NumericalError, match="scores of some images are not finite"):
        Learner.load(tmp_path / "file").predict(toy_images(test=True).images)
