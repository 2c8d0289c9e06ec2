"""Fixtures shared by all tests."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

# Tests are many small computations: one thread is faster than two, and child processes must give the same results.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
import typer.main
from PIL import Image

from adagauss.data.dataset import Dataset

WriteImage = Callable[..., Path]
CheckDataset = Callable[[Dataset, tuple[int, int, int], list[int], list[int]], None]


def pytest_collection_finish() -> None:
    """Leave all modules out of later garbage collections: going through them takes longer than many a test."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the slowest tests unless ADAGAUSS_NIGHTLY=1, as `make torture` sets it."""
    if os.environ.get("ADAGAUSS_NIGHTLY") != "1":
        skip = pytest.mark.skip(reason="slow: runs with ADAGAUSS_NIGHTLY=1")
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _commands_are_made_once() -> Iterator[None]:
    """Typer makes a program from its functions' signatures at every call, which takes longer than most commands."""
    made = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", made)
        patch.setattr("typer.testing._get_command", made)
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Where real datasets lie; tests that need them are skipped elsewhere."""
    root = os.environ.get("ADAGAUSS_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("ADAGAUSS_DATA does not name a folder of real datasets")
    return Path(root)


@pytest.fixture
def write_image() -> WriteImage:
    """A function that writes a small image, its pixels drawn from a seed, and makes the folders it needs."""

    def write(path: Path, *, seed: int = 0, size: tuple[int, int] = (10, 8), mode: str = "RGB") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        width, height = size
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(path)
        return path

    return write


@pytest.fixture
def check() -> CheckDataset:
    """A function that checks a dataset's shapes and the targets of its two parts."""

    def check(dataset: Dataset, shape: tuple[int, int, int], train: list[int], test: list[int]) -> None:
        for part, targets in ((dataset.train, train), (dataset.test, test)):
            assert part.targets.tolist() == targets
            assert part.targets.dtype == torch.long
            assert part.images.batch(torch.arange(len(part))).shape == (len(targets), *shape)
            assert part.classes == dataset.classes
        assert len(dataset.mean) == len(dataset.std) == shape[0]

    return check
