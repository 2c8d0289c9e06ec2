"""Two tiny runs that the tests of figures and rescoring share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adagauss.analysis import measure
from adagauss.core.train import Recipe
from adagauss.data.dataset import Dataset, load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import make_config
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import run
from adagauss.parts.classifiers import SampledLinear

STREAM = StreamConfig(dataset="digits", sizes=(2, 2, 2), classes=6)
SETTINGS: dict[str, Any] = {
    "representation.first.epochs": 6,
    "representation.later.epochs": 6,
    "drift.kind": "affine",
    "drift.views": 1,
}
COLLAPSED: dict[str, Any] = {
    "representation.first.epochs": 2,
    "representation.later.epochs": 2,
    "representation.terms.anti_collapse": None,
    "drift.anti_collapse": 0.0,
    "drift.recipe.epochs": 2,
    "drift.views": 1,
    "drift.samples": 200,
}
"""Without L_AC, and with an adapter that is trained."""


@pytest.fixture(scope="session", autouse=True)
def _short_head() -> Iterator[None]:
    """The linear head of a figure needs no accuracy in tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "HEAD", SampledLinear(samples=200, recipe=Recipe(epochs=1, batch_size=50)))
        yield


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of three tasks; its measurements are stored in its folder."""
    return run(make_config("adagauss", STREAM, settings=SETTINGS), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Another configuration of it."""
    return run(make_config("adagauss", STREAM, settings=COLLAPSED), tmp_path_factory.mktemp("collapsed"))


@pytest.fixture
def copied(opened: Run, tmp_path: Path) -> RunFolder:
    """A copy of the run, without measurements, which a test may damage."""
    target = tmp_path / "copied"
    shutil.copytree(opened.path, target, ignore=shutil.ignore_patterns("analysis", "lock"))
    return RunFolder(target)


@pytest.fixture
def unfinished(copied: RunFolder) -> RunFolder:
    """The run after its first task."""
    for index in (1, 2):
        shutil.rmtree(copied.task(index))
    (copied.path / "metrics.json").unlink()
    return copied
