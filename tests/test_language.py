"""The texts of the project use the words of the field: none of those that `make size` counts as banned."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.size import banned_words, prose

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "results", "examples", "benchmarks", "tests", ".github")
KINDS = {".md", ".py", ".yml", ".html", ".js", ".css", ".jinja", ".yaml", ".json", ".txt"}
GENERATED = ROOT / "docs" / "results"


def texts(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix in KINDS and GENERATED not in path.parents]


@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_texts_use_the_words_of_the_field(folder: str) -> None:
    files = sorted(ROOT.glob("*.md")) if folder == "." else texts(ROOT / folder)
    assert files
    assert banned_words(ROOT, files) == []


def test_sources_use_the_words_of_the_field() -> None:
    assert banned_words(ROOT, prose(ROOT)) == []
