"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

WriteImage = Callable[..., Path]


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
