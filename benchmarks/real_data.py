"""Real datasets for the benchmarks that need them, below ADAGAUSS_DATA."""

from __future__ import annotations

import os
from pathlib import Path

from adagauss.data.dataset import Dataset, ReadOptions, load_dataset


def read(name: str) -> Dataset:
    return load_dataset(name, ReadOptions(root=Path(os.environ.get("ADAGAUSS_DATA", "data"))))
