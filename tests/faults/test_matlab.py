"""Tables in Matlab files, against SciPy's reader where files are sound, and by themselves where they are not."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from adagauss.data import safe_readers
from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.safe_readers import read_matlab_variable
from adagauss.errors import DataError
from tests.faults.budget import budget

ROWS = np.array(
    [(1, 2.5, 1, "a.jpg"), (300, -1e9, 2, "ü long name.jpg"), (70_000, 0.0, 1, "")],
    dtype=[("x", "O"), ("y", "O"), ("class", "O"), ("fname", "O")],
)


@pytest.mark.parametrize("packed", [True, False])
def test_tables_are_read_as_scipy_reads_them(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "table.mat"
    names = np.array(["ant", "bee", "Ñandú"], dtype=object)
    savemat(path, {"other": np.eye(3), "rows": ROWS, "names": names, "empty": []}, do_compression=packed)
    expected = loadmat(path, squeeze_me=True)
    assert read_matlab_variable(path, "names") == expected["names"].tolist()
    rows = read_matlab_variable(path, "rows")
    for row, other in zip(rows, expected["rows"], strict=True):
        assert (row["x"], row["y"], row["class"]) == ([other["x"]], [other["y"]], [other["class"]])
        assert row["fname"] == (other["fname"] if isinstance(other["fname"], str) else "")
    assert read_matlab_variable(path, "other") == np.eye(3).flatten().tolist()
    assert read_matlab_variable(path, "empty") == []
    with pytest.raises(LookupError, match="no 'absent'"):
        read_matlab_variable(path, "absent")


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_numbers_of_every_type(tmp_path: Path, kind: str) -> None:
    numbers = np.array([[0, 1, 2], [3, 100, 127]], dtype=kind)
    savemat(tmp_path / "n.mat", {"numbers": numbers})
    assert read_matlab_variable(tmp_path / "n.mat", "numbers") == numbers.flatten(order="F").tolist()


@pytest.mark.parametrize("order", ["<", ">"])
def test_text_as_matlab_itself_writes_it(tmp_path: Path, order: str) -> None:
    def element(kind: int, data: bytes) -> bytes:
        if len(data) <= 4:
            return struct.pack(f"{order}I", len(data) << 16 | kind) + data.ljust(4, b"\0")
        return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)

    text = "häm".encode("utf-16-le" if order == "<" else "utf-16-be")
    flags = element(6, struct.pack(f"{order}II", 4, 0)) + element(5, struct.pack(f"{order}ii", 1, 3))
    matrix = element(14, flags + element(1, b"word") + element(4, text))
    header = b"MATLAB 5.0".ljust(124) + struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    (tmp_path / "text.mat").write_bytes(header + matrix)
    assert read_matlab_variable(tmp_path / "text.mat", "word") == "häm"


def sound_files(folder: Path) -> list[bytes]:
    contents = []
    for packed in (True, False):
        savemat(folder / "sound.mat", {"names": np.array(["a", "b"], dtype=object)}, do_compression=packed)
        contents.append((folder / "sound.mat").read_bytes())
        savemat(folder / "sound.mat", {"annotations": ROWS}, do_compression=packed)
        contents.append((folder / "sound.mat").read_bytes())
    return contents


@budget(400)
@given(data=st.data())
def test_damaged_tables_are_refused_or_read(tmp_path: Path, data: st.DataObject) -> None:
    """SciPy's reader ends the process at some of these."""
    damaged = bytearray(data.draw(st.sampled_from(sound_files(tmp_path))))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(120, len(damaged) - 1))
        damaged[position] = data.draw(st.sampled_from([0, 1, 4, 5, 6, 14, 15, 16, 127, 255]) | st.integers(0, 255))
    folder = tmp_path / "stanford_cars" / "devkit"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cars_meta.mat", "cars_train_annos.mat"):
        (folder / name).write_bytes(damaged)
    for key in ("names", "annotations"):
        try:
            read_matlab_variable(folder / "cars_meta.mat", key)
        except (ValueError, LookupError):
            continue
    with pytest.raises(DataError, match="cars: "):
        load_dataset("cars", ReadOptions(root=tmp_path))


def test_a_compressed_part_that_swells_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_readers, "MAT_MAX_BYTES", 10_000)
    bomb = zlib.compress(bytes(1_000_000))
    savemat(tmp_path / "x.mat", {"a": 1})
    header = (tmp_path / "x.mat").read_bytes()[:128]
    (tmp_path / "x.mat").write_bytes(header + struct.pack("<II", 15, len(bomb)) + bomb)
    with pytest.raises(ValueError, match="far too large"):
        read_matlab_variable(tmp_path / "x.mat", "a")


def nested(depth: int) -> Any:
    value: Any = np.array([1.0])
    for _ in range(depth):
        cell = np.empty(1, dtype=object)
        cell[0] = value
        value = cell
    return value


def test_nesting_is_bounded(tmp_path: Path) -> None:
    savemat(tmp_path / "x.mat", {"a": nested(3)})
    assert read_matlab_variable(tmp_path / "x.mat", "a") == [[[[1.0]]]]
    savemat(tmp_path / "x.mat", {"a": nested(20)})
    with pytest.raises(ValueError, match="too deep"):
        read_matlab_variable(tmp_path / "x.mat", "a")


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "", "below/a.jpg"])
def test_a_table_cannot_name_files_elsewhere(tmp_path: Path, write_image: Any, name: str) -> None:
    folder = tmp_path / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    write_image(folder / "secret.jpg")
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(["one", "two"], dtype=object)})
    rows = np.array([(1, name), (2, name)], dtype=[("class", "O"), ("fname", "O")])
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": rows})
    with pytest.raises(DataError, match="does not name a file"):
        load_dataset("cars", ReadOptions(root=tmp_path))
