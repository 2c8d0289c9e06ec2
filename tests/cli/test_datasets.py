"""`adagauss list datasets`, within this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from adagauss.cli import app
from adagauss.cli.experiments import presence
from adagauss.data.dataset import datasets
from adagauss.utils.progress import Reporter


@pytest.mark.parametrize("given", [["--data-root", "second"], []])
@pytest.mark.parametrize("command", [["list", "datasets", "--fetch", "mnist"], ["datasets", "fetch", "mnist"]])
def test_fetch_uses_the_data_root(monkeypatch: pytest.MonkeyPatch, command: list[str], given: list[str]) -> None:
    roots: list[Path] = []

    def fetch(name: str, root: Path, reporter: Reporter) -> Path:
        roots.append(root)
        return root

    monkeypatch.setattr("adagauss.data.download.fetch", fetch)
    monkeypatch.setenv("ADAGAUSS_DATA", "environment")
    assert CliRunner().invoke(app, [*command, *given]).exit_code == 0
    assert [str(root) for root in roots] == [(given or ["environment"])[-1]]


def test_the_list_fits_80_columns_without_breaking_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["list", "datasets", "--data-root", str(tmp_path)]).stdout
    assert max(map(len, shown.splitlines())) <= 80
    for info in datasets().values():
        assert info.name in shown
        assert set(info.images.split()) <= {word.rstrip(";") for word in shown.split()} | set(shown.split())
        assert info.licence in " ".join(shown.split())


def test_piped_the_list_has_two_lines_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = CliRunner().invoke(app, ["list", "datasets", "--data-root", str(tmp_path)]).stdout.splitlines()
    assert len(lines) == 1 + 2 * len(datasets())
    (omniglot,) = (index for index, line in enumerate(lines) if line.startswith("omniglot"))
    assert lines[omniglot].endswith("no (fetch)")
    assert "of each character's drawings; in omniglot/; licence: MIT" in lines[omniglot + 1]


def test_only_datasets_can_be_there(tmp_path: Path) -> None:
    known = datasets()
    assert [presence(known[name], tmp_path) for name in ("digits", "folder", "mnist", "cars")] == [
        "yes",
        "-",
        "no (fetch)",
        "no",
    ]
