from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagauss.data.dataset import Dataset, ReadOptions, Trait, dataset_info, load_dataset
from adagauss.data.datasets import mnist
from adagauss.data.safe_pickle import read_plain_pickle
from adagauss.errors import DataError


def read(name: str, root: Path, **options: Any) -> Dataset:
    return load_dataset(name, ReadOptions(root=root, **options))


def write_cifar100(root: Path, images: int = 6, protocol: int = 2) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        content = {
            "data": generator.integers(0, 256, (images, 3072), dtype=np.uint8),
            "fine_labels": [index % 3 for index in range(images)],
        }
        (folder / part).write_bytes(pickle.dumps(content, protocol=protocol))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "bear", "cloud"]}, protocol=protocol))
    return folder


@pytest.mark.parametrize("protocol", [2, 5])
def test_cifar100(tmp_path: Path, protocol: int, caplog: pytest.LogCaptureFixture, check: Any) -> None:
    folder = write_cifar100(tmp_path, protocol=protocol)
    dataset = read("cifar100", tmp_path)
    check(dataset, (3, 32, 32), [0, 1, 2] * 2, [0, 1, 2] * 2)
    assert dataset.classes == ("apple", "bear", "cloud")
    assert dataset.mean == (0.5071, 0.4867, 0.4408)
    assert "not the official file" in caplog.text
    rows = pickle.loads((folder / "train").read_bytes())["data"]
    assert dataset.train.images.batch(torch.tensor([1])).flatten().tolist() == rows[1].tolist()


def test_cifar10(tmp_path: Path, check: Any) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, file in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        content = {"data": np.full((2, 3072), number, dtype=np.uint8), "labels": [number % 2, 1]}
        (folder / file).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": ["cat", "dog"]}))
    dataset = read("cifar10", tmp_path)
    check(dataset, (3, 32, 32), [0, 1, 1, 1, 0, 1, 1, 1, 0, 1], [1, 1])
    (folder / "data_batch_4").unlink()
    with pytest.raises(DataError, match=r"data_batch_4 is missing.*fetch cifar10"):
        read("cifar10", tmp_path)


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path)
    (folder / "train").write_bytes(pickle.dumps({"data": Malicious(tmp_path / "mark")}))
    with pytest.raises(DataError, match="system, which plain data never needs"):
        read("cifar100", tmp_path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["builtins\neval", "numpy\nload", "_codecs\ndecode", "numpy.f2py\nmain"])
def test_no_name_but_those_of_plain_arrays_is_looked_up(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(f"c{name}\n.".encode())
    with pytest.raises(DataError, match="may be malicious"):
        read_plain_pickle(tmp_path / "file")


def test_half_extracted_cifar(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path)
    train = folder / "train"
    train.write_bytes(train.read_bytes()[:-100])
    with pytest.raises(DataError, match="only partly extracted"):
        read("cifar100", tmp_path)
    train.write_bytes(pickle.dumps({"data": np.zeros((2, 5), dtype=np.uint8), "fine_labels": [0, 1]}))
    with pytest.raises(DataError, match="damaged"):
        read("cifar100", tmp_path)
    train.write_bytes(pickle.dumps({"data": np.zeros((1, 3072), dtype=np.uint8), "fine_labels": [7]}))
    with pytest.raises(DataError, match="3 class names"):
        read("cifar100", tmp_path)


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist(tmp_path: Path, name: str, zipped: bool, check: Any) -> None:
    folder = tmp_path / name
    folder.mkdir()
    pixels = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
    labels = np.array([9, 0, 4], dtype=np.uint8)

    def write(file: str, content: bytes) -> None:
        (folder / (f"{file}.gz" if zipped else file)).write_bytes(gzip.compress(content) if zipped else content)

    for part in ("train", "t10k"):
        write(f"{part}-images-idx3-ubyte", idx(pixels))
        write(f"{part}-labels-idx1-ubyte", idx(labels))
    dataset = read(name, tmp_path)
    check(dataset, (1, 28, 28), [9, 0, 4], [9, 0, 4])
    assert dataset.train.images.batch(torch.tensor([2])).flatten().tolist() == pixels[2].flatten().tolist()
    assert (Trait.MIRRORING_HARMS in dataset_info(name).traits) == (name == "mnist")
    write("t10k-labels-idx1-ubyte", idx(labels)[:-1])
    with pytest.raises(DataError, match="damaged"):
        read(name, tmp_path)
    write("t10k-labels-idx1-ubyte", idx(labels[:2]))
    with pytest.raises(DataError, match="are inconsistent"):
        read(name, tmp_path)
    for file in folder.glob("train-images*"):
        file.unlink()
    with pytest.raises(DataError, match=rf"train-images-idx3-ubyte.*fetch {name}"):
        read(name, tmp_path)


def test_a_damaged_gzip_file(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"abc" * 99)[:-12])
    with pytest.raises(DataError, match="damaged"):
        read("mnist", tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_idx_file_that_swells_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(mnist, "MAX_BYTES", 10_000)
    content = idx(np.zeros((100, 28, 28), dtype=np.uint8))
    (tmp_path / "mnist").mkdir()
    file = tmp_path / "mnist" / f"train-images-idx3-ubyte{suffix}"
    file.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(DataError, match="it holds more than 10000 bytes"):
        read("mnist", tmp_path)


@pytest.mark.parametrize("length", [0, 3, 5, 15, 16, 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_idx_file_cut_short_is_named(tmp_path: Path, length: int, suffix: str) -> None:
    content = idx(np.zeros((2, 28, 28), dtype=np.uint8))[:length]
    file = tmp_path / "mnist" / f"train-images-idx3-ubyte{suffix}"
    file.parent.mkdir()
    file.write_bytes(gzip.compress(content) if suffix else content)
    with pytest.raises(DataError, match="is damaged") as raised:
        read("mnist", tmp_path)
    assert f"{file} " in str(raised.value)
