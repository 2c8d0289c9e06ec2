"""`adagauss reproduce`: lists, items, the page and failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from adagauss.errors import NumericalError
from adagauss.experiments.paper import SCALES
from tests.cli.conftest import Command
from tests.experiments.tiny_scale import TINY


def test_the_list_fits_a_terminal_and_names_missing_data(
    adagauss: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = adagauss("reproduce", "--list", "--scale", "paper", "--data-root", "data", "--out", "out")
    assert outcome.code == 0, outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "is not in" in outcome.out
    assert "ablation" in outcome.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name what to reproduce"),
        (("table10",), "did you mean 'table"),
        (("table1", "--scale", "gpu"), "unknown scale 'gpu'"),
        (("table1", "--seeds", "one"), "--seeds takes numbers"),
    ],
)
def test_a_wrong_argument_is_an_error_message(adagauss: Command, words: tuple[str, ...], message: str) -> None:
    outcome = adagauss("reproduce", *words)
    assert outcome.code == 2
    assert message in outcome.said


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCALES, "tiny", TINY)


@pytest.mark.usefixtures("tiny")
def test_an_item_is_made_and_shown(adagauss: Command, tmp_path: Path) -> None:
    page = tmp_path / "paper.md"
    outcome = adagauss("reproduce", "shift", "--scale", "tiny", "--out", tmp_path, "--page", page, "--quiet")
    assert outcome.code == 0, outcome.err
    assert "A_last" in outcome.out
    assert "one seed" in outcome.out
    assert "![Predicted shift" in page.read_text(encoding="utf-8")
    assert (tmp_path / "tiny" / "shift" / "cifar100-10" / "shift.png").exists()


@pytest.mark.usefixtures("tiny")
def test_a_failure_is_shown(adagauss: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise NumericalError("the loss became NaN")

    monkeypatch.setattr("adagauss.experiments.grid.run", run)
    outcome = adagauss("reproduce", "shift", "--scale", "tiny", "--out", tmp_path, "--quiet")
    assert outcome.code == 2
    assert "AdaGauss failed: the loss became NaN" in outcome.said
