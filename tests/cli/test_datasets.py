"""`adagauss list datasets`, within this process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adagauss.cli import app
from adagauss.data.dataset import datasets
from adagauss.utils.progress import Reporter


@pytest.mark.parametrize("given", [["--data-root", "second"], []])
def test_fetch_uses_the_data_root(monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    roots: list[Path] = []

    def fetch(name: str, root: Path, reporter: Reporter) -> Path:
        roots.append(root)
        return root

    monkeypatch.setattr("adagauss.data.download.fetch", fetch)
    monkeypatch.setenv("ADAGAUSS_DATA", "environment")
    assert CliRunner().invoke(app, ["list", "datasets", "--fetch", "mnist", *given]).exit_code == 0
    assert [str(root) for root in roots] == [(given or ["environment"])[-1]]


def test_the_list_fits_80_columns_without_breaking_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["list", "datasets", "--data-root", str(tmp_path)]).stdout
    assert max(map(len, shown.splitlines())) <= 80
    for info in datasets().values():
        assert info.name in shown
        assert {*info.images.split(), *info.licence.split()} <= {*shown.split(), *shown.replace(";", "").split()}


def test_piped_the_list_has_a_line_for_each_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = CliRunner().invoke(app, ["list", "datasets", "--data-root", str(tmp_path)]).stdout.splitlines()
    assert len(lines) == 1 + len(datasets())
    (omniglot,) = (line for line in lines if line.startswith("omniglot"))
    assert "no (fetch)" in omniglot
    assert "of each character's drawings; in omniglot/; licence: MIT" in omniglot


def test_only_datasets_can_be_there(tmp_path: Path) -> None:
    lines = CliRunner().invoke(app, ["list", "datasets", "--data-root", str(tmp_path)]).stdout.splitlines()
    present = {line.split()[0]: re.split(" {2,}", line)[1] for line in lines}
    assert [present[name] for name in ("digits", "folder", "mnist", "cars")] == ["yes", "-", "no (fetch)", "no"]
