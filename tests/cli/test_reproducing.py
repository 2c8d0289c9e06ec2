"""`adagauss reproduce`: what it needs is said before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_the_list_fits_a_terminal_and_says_what_cannot_be_made(
    adagauss: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = adagauss("reproduce", "--list", "--scale", "paper", "--data-root", "data", "--out", "out")
    assert outcome.code == 0, outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "is not at hand" in outcome.out
    assert "ablation" in outcome.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what to reproduce"),
        (("table9",), "did you mean 'table"),
        (("table1", "--scale", "gpu"), "unknown scale 'gpu'"),
        (("table1", "--seeds", "one"), "--seeds takes numbers"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(adagauss: Command, words: tuple[str, ...], said: str) -> None:
    outcome = adagauss("reproduce", *words)
    assert outcome.code == 2
    assert said in outcome.said


def test_a_dry_run_writes_the_page_of_what_is_there_and_nothing_else(adagauss: Command, tmp_path: Path) -> None:
    page = tmp_path / "paper.md"
    words = ("shift", "--dry-run", "--page", page, "--data-root", tmp_path, "--out", tmp_path / "out")
    outcome = adagauss("reproduce", *words)
    assert outcome.code == 0, outcome.err
    assert "Not measured" in page.read_text(encoding="utf-8")
    assert not (tmp_path / "out").exists()
