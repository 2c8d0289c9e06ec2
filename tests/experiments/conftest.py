"""Finished runs that many tests read; those that change one copy it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from adagauss.experiments.grid import run_grid
from adagauss.experiments.run import Run
from adagauss.experiments.runner import run
from tests.experiments.runs import SMALL, STREAM, quick_config

collect_ignore = ["faulty.py"]
"""It registers a method, which only the tests that name it may import."""


@pytest.fixture(scope="session")
def adagauss_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of AdaGauss."""
    return run(quick_config(), tmp_path_factory.mktemp("adagauss") / "run").path


@pytest.fixture(scope="session")
def finetune_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of plain fine-tuning."""
    return run(quick_config("finetune"), tmp_path_factory.mktemp("finetune") / "run").path


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Run]]:
    """A small grid whose runs were made one after another in this process."""
    return run_grid("finetune,frozen", [0], STREAM, tmp_path_factory.mktemp("alone"), epochs=1, settings=SMALL).results


@pytest.fixture
def finished(finetune_run: Path, tmp_path: Path) -> Path:
    """A copy of the folder of fine-tuning, which a test may damage."""
    return Path(shutil.copytree(finetune_run, tmp_path / "finished"))
