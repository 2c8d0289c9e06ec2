"""Two tiny runs that the tests of figures and rescoring share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adagauss.analysis import measure
from adagauss.core.train import Recipe
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run of three tasks; its measurements are stored in it."""
    path = tmp_path_factory.mktemp("run")
    run(make_config("adagauss", STREAM, settings=SETTINGS), path)
    return RunFolder(path)


@pytest.fixture(scope="session")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Another configuration of it."""
    path = tmp_path_factory.mktemp("collapsed")
    run(make_config("adagauss", STREAM, settings=COLLAPSED), path)
    return RunFolder(path)


@pytest.fixture
def copied(folder: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the run, without measurements, which a test may damage."""
    target = tmp_path / "copied"
    shutil.copytree(folder.path, target, ignore=shutil.ignore_patterns("analysis", "lock"))
    return RunFolder(target)


@pytest.fixture
def unfinished(copied: RunFolder) -> RunFolder:
    """The run after its first task."""
    for index in (1, 2):
        shutil.rmtree(copied.task(index))
    (copied.path / "metrics.json").unlink()
    return copied


@pytest.fixture(scope="session")
def opened(folder: RunFolder) -> Run:
    """The finished run."""
    return Run.open(folder.path)


@pytest.fixture(scope="session")
def other(collapsed: RunFolder) -> Run:
    """The run of another configuration."""
    return Run.open(collapsed.path)
