"""Confusions as pairs that occurred, against the table of all pairs."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adagauss.core.calibration import CalibrationStats
from adagauss.core.state import ClassMap
from adagauss.errors import DataError

CLASSES = 5
COLUMNS = st.integers(0, CLASSES - 1)
PAIRS = st.lists(st.tuples(COLUMNS, COLUMNS), max_size=40)
MOST = 21_841
"""The classes of ImageNet-21k."""


def counted(pairs: list[tuple[int, int]]) -> tuple[CalibrationStats, Tensor]:
    """The same images as pairs and in a table."""
    both = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
    found, table = CalibrationStats(CLASSES), torch.zeros(CLASSES, CLASSES, dtype=torch.int32)
    found.observe(torch.eye(CLASSES)[both[:, 1]], both[:, 0])
    table.index_put_(tuple(both.T), torch.ones(len(both), dtype=torch.int32), accumulate=True)
    return found, table


def dense(found: CalibrationStats, classes: int = CLASSES) -> Tensor:
    found.check()
    table = torch.zeros(classes, classes, dtype=torch.int32)
    true, predicted, counts = found.confusions.T
    table[true.long(), predicted.long()] = counts
    return table


@st.composite
def some_groups(draw: st.DrawFn) -> ClassMap:
    """Classes in any order, some forgotten and some joined."""
    homes = draw(st.lists(st.one_of(st.none(), COLUMNS), min_size=CLASSES, max_size=CLASSES))
    groups = [tuple(column for column, home in enumerate(homes) if home == place) for place in range(CLASSES)]
    return tuple(group for group in groups if group)


@given(PAIRS, PAIRS)
def test_adding_counts_as_a_table_does(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    found, table = counted(first)
    assert torch.equal(dense(found), table)
    both = torch.tensor(second, dtype=torch.long).reshape(-1, 2)
    found.observe(torch.eye(CLASSES)[both[:, 1]], both[:, 0])
    assert torch.equal(dense(found), counted(first + second)[1])
    assert len(found.confusions) == len(set(first + second))


@given(PAIRS, some_groups())
def test_forgetting_and_joining_are_sums_of_the_table(pairs: list[tuple[int, int]], groups: ClassMap) -> None:
    found, table = counted(pairs)
    members = torch.zeros(CLASSES, len(groups), dtype=torch.int32)
    for place, group in enumerate(groups):
        members[list(group), place] = 1
    assert torch.equal(dense(found.remap_classes(groups), len(groups)), members.T @ table @ members)
    assert torch.equal(dense(found), table)  # the original is not changed


@given(PAIRS, PAIRS, st.permutations(range(CLASSES + 2)))
def test_merging_adds_at_the_places_of_the_classes(
    mine: list[tuple[int, int]], theirs: list[tuple[int, int]], places: list[int]
) -> None:
    (one, table), (other, second) = counted(mine), counted(theirs)
    columns = torch.tensor(places[:CLASSES])
    wanted = torch.zeros(CLASSES + 2, CLASSES + 2, dtype=torch.int32)
    wanted[:CLASSES, :CLASSES] = table
    wanted[columns.unsqueeze(1), columns] += second
    assert torch.equal(dense(one.merged(other, tuple(places[:CLASSES])), CLASSES + 2), wanted)


@given(PAIRS, st.sets(COLUMNS))
def test_held_out_images_replace_the_confusions_of_fitted_ones(pairs: list[tuple[int, int]], again: set[int]) -> None:
    both = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
    found, table = CalibrationStats(CLASSES), counted(pairs)[1]
    found.observe(torch.eye(CLASSES)[both[:, 1]], both[:, 0], left_out=False)
    columns = torch.tensor(sorted(again), dtype=torch.long)
    found.observe(torch.eye(CLASSES)[columns], columns)
    table[sorted(again)] = torch.eye(CLASSES, dtype=torch.int32)[sorted(again)]
    assert torch.equal(dense(found), table)


def evidence(classes: int = CLASSES) -> CalibrationStats:
    generator = torch.Generator().manual_seed(0)
    found = CalibrationStats()
    found.observe(torch.randn(60, classes, generator=generator), torch.arange(60) % classes)
    return found


@pytest.mark.parametrize(
    ("row", "column", "value", "reason"),
    [
        (0, 2, 0, "confusions of no image"),
        (0, 2, 61, "more images than it scored"),
        (0, 0, -1, "unknown confused classes"),
        (-1, 1, CLASSES, "unknown confused classes"),
        (0, 0, 3, "not in order"),
    ],
)
def test_forged_confusions_are_refused(row: int, column: int, value: int, reason: str) -> None:
    forged = copy.deepcopy(evidence())
    forged.confusions[row, column] = value
    with pytest.raises(DataError, match=reason):
        forged.check()


def test_many_classes_take_memory_for_the_images_only() -> None:
    found = evidence(MOST)
    assert found.confusions.numel() * found.confusions.element_size() <= 12 * 60
    assert len(found.summary(range(MOST))) == MOST
