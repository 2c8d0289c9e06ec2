from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adagauss.data.dataset import Dataset, ReadOptions, dataset_info, datasets, load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError, DataError


def read(name: str, root: Path, **options: Any) -> Dataset:
    return load_dataset(name, ReadOptions(root=root, **options))


def test_every_dataset_that_needs_files_says_what_is_missing(tmp_path: Path) -> None:
    for name, info in datasets().items():
        if not info.folder:
            continue
        assert not info.present(tmp_path)
        with pytest.raises(DataError, match=f"{name}.*expected at"):
            read(name, tmp_path)


def test_registry() -> None:
    known = datasets()
    assert known["cifar100"].downloads
    assert not known["cars"].downloads
    with pytest.raises(ConfigError, match="did you mean 'cifar100'"):
        dataset_info("cifar-100")
    with pytest.raises(ConfigError, match="unknown dataset"):
        dataset_info("cifar100:/some/path")


def test_folder_info(tmp_path: Path) -> None:
    info = dataset_info(f"folder:{tmp_path}")
    assert info.name == f"folder:{tmp_path}"
    assert info.present(Path("anywhere"))
    assert not dataset_info(f"folder:{tmp_path / 'absent'}").present(tmp_path)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "classes", "train", "test", "shape"),
    [
        ("cifar100", 100, 50000, 10000, (3, 32, 32)),
        ("tiny", 50, 25000, 2500, (3, 64, 64)),
        ("cub", 200, 5994, 5794, (3, 224, 224)),
        ("omniglot", 1623, 24345, 8115, (1, 32, 32)),
    ],
)
def test_real_data(
    data_root: Path, name: str, classes: int, train: int, test: int, shape: tuple[int, int, int]
) -> None:
    if not dataset_info(name).present(data_root):
        pytest.skip(f"{name} is not there")
    dataset = read(name, data_root, cache_bytes=0)
    assert len(dataset.classes) == classes
    assert (len(dataset.train), len(dataset.test)) == (train, test)
    for part in (dataset.train, dataset.test):
        assert part.counts().min() > 0
        some = torch.arange(0, len(part), 997)
        assert part.images.batch(some).shape == (len(some), *shape)
    sample = dataset.train.images.batch(torch.arange(0, train, 97)).double() / 255
    for channel, (mean, std) in enumerate(zip(dataset.mean, dataset.std, strict=True)):
        assert abs(float(sample[:, channel].mean()) - mean) < 0.1
        assert abs(float(sample[:, channel].std()) - std) < 0.1


def test_an_empty_or_half_filled_folder_is_not_a_dataset(tmp_path: Path) -> None:
    for info in datasets().values():
        if info.folder:
            (tmp_path / info.folder).mkdir(exist_ok=True)
            assert not info.present(tmp_path), info.name
    mnist = datasets()["mnist"]
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        assert not mnist.present(tmp_path)
        (tmp_path / "mnist" / f"{name}-ubyte.gz").touch()
    assert mnist.present(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="the paths of this test are those of Unix")
def test_a_stream_names_its_folder_for_every_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert StreamConfig(dataset="folder:images").dataset == f"folder:{tmp_path}/images"
    assert StreamConfig.of({"dataset": "folder:/some/where"}).dataset == "folder:/some/where"
    assert StreamConfig(dataset="folder:~/images").dataset == "folder:/home/me/images"
    for unchanged in ("digits", "folder", "folder:", "cifar100:x", "unheard-of"):
        assert StreamConfig(dataset=unchanged).dataset == unchanged
    with pytest.raises(ConfigError, match="unknown dataset 'folder:'"):
        load_dataset("folder:")
