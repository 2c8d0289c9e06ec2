"""`adagauss analyse` from the outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from adagauss.analysis.studies import studies
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import make_config
from adagauss.experiments.runner import run
from tests.cli.conftest import Command


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two tasks that stores means only."""
    path = tmp_path_factory.mktemp("tiny")
    run(make_config("frozen", StreamConfig(dataset="digits", sizes=(2, 2), classes=4), epochs=1), path)
    return path


def test_the_list_names_every_study_within_eighty_columns(adagauss: Command) -> None:
    outcome = adagauss("list", "figures")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert [line.split()[0] for line in lines[1:] if not line.endswith(":")] == list(studies())
    assert max(map(len, lines)) <= 80
    assert "…" not in outcome.out


def test_figures_of_a_run_are_written_and_the_others_explained(adagauss: Command, tiny: Path, tmp_path: Path) -> None:
    outcome = adagauss("analyse", tiny, "--study", "recency,ranks", "--out", tmp_path / "figures", "--quiet")
    assert outcome.code == 0
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"recency.{ending}" for ending in ("png", "svg", "csv", "txt")
    }
    assert "not drawn: ranks: it needs runs that store covariances" in outcome.said
    lines = (outcome.out + outcome.err).replace(str(tmp_path), "").splitlines()
    assert max(map(len, lines)) <= 80


def test_nothing_drawn_is_a_failure(adagauss: Command, tiny: Path, tmp_path: Path) -> None:
    outcome = adagauss("analyse", tiny, "--study", "spectrum", "--out", tmp_path / "none", "--quiet")
    assert outcome.code == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--study", "rank"], "did you mean 'ranks'?"),
        ([], "is not a run folder"),
    ],
)
def test_wrong_words_are_told(adagauss: Command, tmp_path: Path, words: list[str], reason: str) -> None:
    outcome = adagauss("analyse", tmp_path, *words)
    assert outcome.code == 2
    assert reason in outcome.said


def test_a_missing_run_is_an_error(adagauss: Command) -> None:
    assert "Missing argument 'RUN...'" in adagauss("analyse").said
