"""Confusions as pairs that happened, against the table of all pairs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adagauss.core.calibration import CalibrationStats, Confusions
from adagauss.core.state import ClassMap
from adagauss.errors import DataError

CLASSES = 5
COLUMNS = st.integers(0, CLASSES - 1)
PAIRS = st.lists(st.tuples(COLUMNS, COLUMNS), max_size=40)
MOST = 21_841
"""The classes of ImageNet-21k."""


def counted(pairs: list[tuple[int, int]]) -> tuple[Confusions, Tensor]:
    """The same images as pairs and in a table."""
    both = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
    found, table = Confusions(), torch.zeros(CLASSES, CLASSES, dtype=torch.int32)
    found.add(*both.T)
    table.index_put_(tuple(both.T), torch.ones(len(both), dtype=torch.int32), accumulate=True)
    return found, table


def dense(found: Confusions, classes: int = CLASSES) -> Tensor:
    found.check()
    table = torch.zeros(classes, classes, dtype=torch.int32)
    table[found.true.long(), found.taken.long()] = found.counts
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
    more, _ = counted(second)
    found.add(more.true, more.taken, more.counts)
    assert torch.equal(dense(found), counted(first + second)[1])
    assert len(found.counts) == len(set(first + second))


@given(PAIRS)
def test_rows_and_old_tables_say_the_same(pairs: list[tuple[int, int]]) -> None:
    found, table = counted(pairs)
    assert torch.equal(dense(Confusions.of_table(table)), table)
    rows = [{taken: count for taken, count in enumerate(row) if count} for row in table.tolist()]
    assert found.rows(CLASSES) == rows
    assert found.images(CLASSES).tolist() == table.sum(1).tolist()
    assert found.classes == max((max(pair) + 1 for pair in pairs), default=0)


@given(PAIRS, some_groups())
def test_forgetting_and_joining_are_sums_of_the_table(pairs: list[tuple[int, int]], groups: ClassMap) -> None:
    found, table = counted(pairs)
    members = torch.zeros(CLASSES, len(groups), dtype=torch.int32)
    for place, group in enumerate(groups):
        members[list(group), place] = 1
    assert torch.equal(dense(found.remap_classes(groups), len(groups)), members.T @ table @ members)
    assert torch.equal(dense(found), table)  # that before stays as it is


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
def test_dropped_classes_have_an_empty_row(pairs: list[tuple[int, int]], gone: set[int]) -> None:
    found, table = counted(pairs)
    found.drop(torch.tensor(sorted(gone), dtype=torch.long))
    table[sorted(gone)] = 0
    assert torch.equal(dense(found), table)


def evidence(classes: int = CLASSES) -> CalibrationStats:
    generator = torch.Generator().manual_seed(0)
    found = CalibrationStats()
    found.observe(torch.randn(60, classes, generator=generator), torch.arange(60) % classes)
    return found


def test_evidence_saved_with_a_table_is_read() -> None:
    now = evidence()
    before: dict[str, Any] = {
        name: tensor for name, tensor in now.state_dict().items() if not name.startswith("confusions")
    }
    before["confusions"] = dense(now.confusions)
    read = CalibrationStats()
    read.load_state_dict(before)
    read.check()
    assert read.summary(range(CLASSES)) == now.summary(range(CLASSES))
    assert read.state_dict().keys() == now.state_dict().keys()
    assert "confusions" in before  # what was given is not changed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"counts": 0}, "counts of no image"),
        ({"counts": 61}, "more images than it saw"),
        ({"true": -1}, "counts of no class"),
        ({"taken": CLASSES}, "beyond its own"),
        ({"true": 3}, "not in order"),
    ],
)
def test_forged_confusions_are_refused(change: dict[str, int], reason: str) -> None:
    forged = copy.deepcopy(evidence())
    place = -1 if "taken" in change else 0
    for name, value in change.items():
        forged.confusions.get_buffer(name)[place] = value
    with pytest.raises(DataError, match=reason):
        forged.check()


def test_many_classes_take_memory_for_the_images_only() -> None:
    found = evidence(MOST)
    size = sum(tensor.numel() * tensor.element_size() for tensor in found.confusions.state_dict().values())
    assert size <= 12 * 60
    assert len(found.summary(range(MOST))) == MOST
