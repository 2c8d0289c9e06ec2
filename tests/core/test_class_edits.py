"""Class edits: columns, outputs, sums, and whether sums fit into memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adagauss.analytic.moments import MomentSums, check_fits, needed_bytes
from adagauss.backbones import IncrementalHead
from adagauss.core.learn import Learner
from adagauss.core.linalg import summed_columns
from adagauss.core.state import SharedState, State
from adagauss.errors import ConfigError, UnsupportedError
from adagauss.utils import runtime
from tests.contracts.toy import quick_method, taught, toy_tasks

WIDTH = 6


def points(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same_sums(one: MomentSums, other: MomentSums) -> None:
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(one.get_buffer(name), tensor)


def test_columns_of_a_group_add_up_and_a_column_alone_stays_to_the_bit() -> None:
    matrix = torch.rand(3, 4)
    result = summed_columns(matrix, ((3,), (0, 2)))
    assert torch.equal(result[:, 0], matrix[:, 3])
    torch.testing.assert_close(result[:, 1], matrix[:, 0] + matrix[:, 2])


def test_sums_of_joined_classes_are_those_of_one_class() -> None:
    rows, targets = points(30), torch.arange(30) % 3
    sums = MomentSums(WIDTH).add_(rows, targets).regroup_(((1,), (0, 2)))
    assert_same_sums(sums, MomentSums(WIDTH).add_(rows, (targets != 1).long()))


def test_sums_of_a_class_in_no_group_are_dropped() -> None:
    rows, targets = points(30), torch.arange(30) % 3
    sums = MomentSums(WIDTH).add_(rows, targets)
    assert_same_sums(sums.copy().regroup_(((2,), (0,))).regroup_(((1,), (0,))), sums.regroup_(((0,), (2,))))


def test_sums_of_others_are_added_to_their_columns() -> None:
    rows, targets = points(20), torch.arange(20) % 2
    merged = MomentSums(WIDTH).add_(rows, targets).merge_(MomentSums(WIDTH).add_(rows, targets), (2, 0))
    expected = MomentSums(WIDTH).add_(rows, targets).add_(rows, torch.tensor([2, 0])[targets])
    assert_same_sums(merged, expected)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_head_loses_outputs_and_the_auxiliary_ones_of_their_block(kind: Any) -> None:
    head = IncrementalHead(4, kind=kind)
    for classes, auxiliary in ((2, 3), (1, 0), (3, 2)):
        head.grow(classes, auxiliary)
    fewer = head.select([(0, 1), (), (2, 0)])
    assert fewer.sizes == [(2, 3), (2, 0)]
    features = torch.randn(5, 4)
    torch.testing.assert_close(fewer.seen(features), head.seen(features)[:, [0, 1, 5, 3]])
    assert head.sizes == [(2, 3), (1, 0), (3, 2)]


def test_only_a_shared_state_follows_class_edits_by_default() -> None:
    with pytest.raises(UnsupportedError, match=r"cannot be forgotten.*train a new learner"):
        State().remap_classes(((0,),))
    with pytest.raises(UnsupportedError, match=r"cannot be merged"):
        State().remap_classes(((0, 1),))
    with pytest.raises(UnsupportedError, match=r"cannot be merged"):
        State().merged(State(), (0,))
    common = SharedState()
    assert common.remap_classes(((0, 1),)) is common
    assert common.merged(SharedState(), (0,)) is common


def test_sums_take_at_least_what_their_tensors_take() -> None:
    sums = MomentSums(3000, 7)
    assert needed_bytes(3000, 7) > 2 * sum(tensor.nbytes for tensor in sums.state_dict().values())


@given(classes=st.integers(1, 300), width=st.integers(2, 20_000), rows=st.integers(0, 2000))
def test_what_does_not_fit_is_refused_with_what_would(classes: int, width: int, rows: int) -> None:
    needed = needed_bytes(width, classes, rows)
    check_fits(width, classes, None, "filters", rows)
    check_fits(width, classes, needed, "filters", rows)
    widths = f"{width} features and {classes} classes take .*"
    with pytest.raises(ConfigError, match=rf"{widths}change filters; {width - 1} features would fit"):
        check_fits(width, classes, needed - 1, "filters", rows)
    with pytest.raises(ConfigError, match=rf"{widths}teach fewer classes"):
        check_fits(width, classes, needed_bytes(1, classes, rows) - 1, "filters", rows)


@pytest.mark.parametrize(
    ("name", "available", "setting"),
    [
        ("analytic-patches", 2_000_000, "backbone.options.filters"),
        ("analytic", 2_500_000, "backbone.options.patches.filters"),
        ("ranpac", 500_000, "classifier.random_features"),
        ("analytic-pretrained", 500_000, "backbone.name"),
    ],
)
def test_sums_beyond_the_memory_are_refused_before_anything_is_computed(
    name: str, available: int, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(quick_method(name), (1, 8, 8), (0.5,), (0.2,))
    monkeypatch.setattr(runtime, "available_memory", lambda: available)
    monkeypatch.setattr("adagauss.core.learn.learn_task", lambda *_: pytest.fail("something was computed"))
    with pytest.raises(ConfigError, match=f"change {setting}; [0-9]+ features would fit"):
        learner.learn(toy_tasks()[0])


def test_more_classes_than_fit_leave_the_learner_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = taught("analytic-patches", 1)
    before = learner.state
    monkeypatch.setattr(runtime, "available_memory", lambda: 1000)
    with pytest.raises(ConfigError, match="free some memory"):
        learner.learn(toy_tasks()[1])
    assert learner.state is before
