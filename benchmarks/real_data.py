"""Real datasets for the benchmarks that need them, below ADAGAUSS_DATA."""

from __future__ import annotations

import os
from pathlib import Path

from adagauss.data.dataset import Dataset, ReadOptions, load_dataset


def read(name: str, image_size: int | None = None) -> Dataset:
    root = Path(os.environ.get("ADAGAUSS_DATA", "data"))
    return load_dataset(name, ReadOptions(root=root, size=image_size))
