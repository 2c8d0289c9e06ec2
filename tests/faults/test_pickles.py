"""CIFAR's pickles: whatever is in them, they are read as plain data or refused, and never end the process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.safe_pickle import read_plain_pickle
from adagauss.errors import DataError
from tests.faults.budget import budget
from tests.faults.hostile_pickles import HARMLESS, HOSTILE, forged_pointers

ROOT = Path(__file__).parents[2]
FUZZ = budget(300)
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
CONTENT = {"data": PIXELS, "fine_labels": [0, 1, 1, 0], "filenames": ["a.png", "é.png"]}


def test_hostile_pickles_do_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.hostile_pickles"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = {case: "read" if case in HARMLESS else "refused" for case in HOSTILE}
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == expected


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("kind", ["|b1", "u1", "<i8", ">i4", "<f4", ">f8", "<f2", "<u2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numeric_arrays_come_back_as_they_were(tmp_path: Path, protocol: int, kind: str, order: str) -> None:
    rows = np.asarray(np.arange(6).reshape(2, 3), dtype=kind)
    array = np.asfortranarray(rows) if order == "F" else rows
    again = {"one": array, "two": array, "scalar": np.array(3, dtype=kind), "empty": np.zeros((0, 4), dtype=kind)}
    (tmp_path / "file").write_bytes(pickle.dumps(again, protocol=protocol))
    loaded = read_plain_pickle(tmp_path / "file")
    for name, expected in again.items():
        assert loaded[name].dtype == expected.dtype
        assert np.array_equal(loaded[name], expected)


@pytest.mark.parametrize(
    "array",
    [np.array(["text"]), np.array([{}]), np.zeros(2, dtype="u1,f4"), np.array([1j]), np.array(["2020-01-01"], "M8[D]")],
    ids=["text", "objects", "records", "complex", "dates"],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_of_anything_but_numbers_are_refused(
    tmp_path: Path, array: np.ndarray[Any, np.dtype[Any]], protocol: int
) -> None:
    (tmp_path / "file").write_bytes(pickle.dumps(array, protocol=protocol))
    with pytest.raises(DataError):
        read_plain_pickle(tmp_path / "file")


def write_cifar(root: Path, train: bytes, meta: bytes | None = None) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir(exist_ok=True)
    (folder / "train").write_bytes(train)
    (folder / "test").write_bytes(pickle.dumps(CONTENT, protocol=2))
    (folder / "meta").write_bytes(meta or pickle.dumps({"fine_label_names": ["ant", "bee"]}, protocol=2))


def is_sound(root: Path) -> bool:
    """Whether CIFAR is read, and if so, that what was read is what a network can learn from."""
    try:
        data = load_dataset("cifar100", ReadOptions(root=root)).train
    except DataError:
        return False
    assert data.images.shape == (3, 32, 32)
    assert len(data.images) == len(data.targets)
    assert all(0 <= target < len(data.classes) for target in data.targets.tolist())
    assert all(isinstance(label, str) for label in data.classes)
    return True


WHOLE = [pickle.dumps(CONTENT, protocol=protocol) for protocol in (2, 5)]
SMALL = [pickle.dumps({**CONTENT, "data": PIXELS[:1, :40]}, protocol=protocol) for protocol in range(2, 6)]


@FUZZ
@given(data=st.data())
def test_a_pickle_with_changed_bytes_is_refused_or_sound(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(WHOLE)))
    for _ in range(data.draw(st.integers(1, 4))):
        # Most bytes are pixels: the structure is at the two ends.
        reach = data.draw(st.sampled_from([400, len(damaged)]))
        position = data.draw(st.integers(-reach, reach - 1))
        damaged[position] = data.draw(st.integers(0, 255) | st.sampled_from(list(b"()}]tRbseu.NcqhKMJTU\x85\x86\x87")))
    write_cifar(tmp_path, bytes(damaged))
    is_sound(tmp_path)


@FUZZ
@given(data=st.data())
def test_a_pickle_with_pieces_cut_and_moved_is_refused_or_sound(tmp_path: Path, data: st.DataObject) -> None:
    damaged = data.draw(st.sampled_from([*SMALL, forged_pointers()]))
    for _ in range(data.draw(st.integers(1, 3))):
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(damaged))] * 2)))
        target = data.draw(st.integers(0, len(damaged)))
        damaged = damaged[:target] + damaged[start:stop] * data.draw(st.integers(0, 3)) + damaged[target:]
        damaged = damaged[: data.draw(st.sampled_from([len(damaged), stop]))]
    write_cifar(tmp_path, damaged)
    is_sound(tmp_path)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@FUZZ
@given(rows=plain, labels=plain, names=plain, protocol=st.integers(2, 5))
@example(rows=PIXELS, labels=7, names=["ant", "bee"], protocol=2)
@example(rows=PIXELS, labels=[0, 1, 1, 2.5], names=["ant", "bee"], protocol=2)
@example(rows=PIXELS, labels=[0, 1, 1, True], names=["ant", "bee"], protocol=2)
@example(rows=PIXELS, labels=[0, 1, 1, 2**70], names=["ant", "bee"], protocol=2)
@example(rows=PIXELS, labels=[0, 1, 1, -1], names=["ant", "bee"], protocol=2)
@example(rows=PIXELS, labels=[0, 1, 1, 0], names="two", protocol=2)
@example(rows=PIXELS, labels=[0, 1, 1, 0], names=3, protocol=2)
def test_content_of_other_kinds_is_refused(tmp_path: Path, rows: Any, labels: Any, names: Any, protocol: int) -> None:
    content = {"data": rows, "fine_labels": labels}
    write_cifar(tmp_path, pickle.dumps(content, protocol), pickle.dumps({"fine_label_names": names}, protocol))
    assert not is_sound(tmp_path)


def test_copies_with_keys_of_bytes_are_read(tmp_path: Path) -> None:
    content = {b"data": PIXELS, b"fine_labels": np.array([0, 1, 1, 0]), b"coarse_labels": [0, 0, 0, 0]}
    write_cifar(tmp_path, pickle.dumps(content), pickle.dumps({b"fine_label_names": [b"ant", b"bee"]}))
    dataset = load_dataset("cifar100", ReadOptions(root=tmp_path))
    assert dataset.classes == ("ant", "bee")
    assert dataset.train.targets.tolist() == [0, 1, 1, 0]
