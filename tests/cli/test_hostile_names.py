"""Class names that attack a terminal, a table or a file: shown harmlessly everywhere."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image
from rich.cells import cell_len

from adagauss.cli import output
from adagauss.data.images import evenly_spaced
from adagauss.utils.progress import clipped, escape_control_chars
from tests.cli.conftest import SMALL, Command, fill, prepare

NAMES = [
    "[bold]",
    "[red]not red",
    "\x1b[31mescape\x1b[0m",
    "two\nlines\ttab",
    os.fsdecode(b"caf\xe9"),
    "w" * 200,
    "שלום עולם",
    "\u202egnp.exe",
    "$a_{$ %s {0}",
    "=HYPERLINK(1)",
]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    fill(folder / "seen", NAMES, 8)
    _check_harmless(prepare(folder, "teach", "model.safetensors", "seen", *SMALL).out)
    return folder


@pytest.fixture
def hostile(taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(taught, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model.safetensors"


def _check_harmless(text: str, width: int = 80) -> None:
    assert not set(text) & set("\x1b\t\u202e\x07")
    assert not any(0xD800 <= ord(letter) < 0xE000 for letter in text)
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_every_table_shows_them_within_80_cell_len(adagauss: Command, hostile: Path) -> None:
    for words in (
        ["predict", hostile, "seen", "--top", "2", "--quiet"],
        ["info", hostile],
        ["evaluate", hostile, "seen"],
    ):
        outcome = adagauss(*words)
        assert outcome.code == 0, outcome.err
        _check_harmless(outcome.out)
        for shown in ("[bold]", "\\x1b[31mescape", "two\\nlines\\ttab", "caf\\xe9", "\\u202egnp.exe", "שלום"):
            assert shown in outcome.out


def test_json_gives_them_back_exactly(adagauss: Command, hostile: Path) -> None:
    lines = adagauss("predict", hostile, "seen", "--json", "--quiet").out.splitlines()
    assert {json.loads(line)["class"] for line in lines} == set(NAMES)
    numbers = json.loads(adagauss("evaluate", hostile, "seen", "--json", "--quiet").out)
    assert {one["class"] for one in numbers["classes"]} == set(NAMES)


def test_csv_has_one_line_per_image(adagauss: Command, hostile: Path) -> None:
    text = adagauss("predict", hostile, "seen", "--csv", "--quiet").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(text.splitlines()) - 1 == 8 * len(NAMES)
    assert {row["class"] for row in rows} == {escape_control_chars(name) for name in [*NAMES[:-1], "'=HYPERLINK(1)"]}


def test_they_can_be_forgotten_and_renamed_by_name(adagauss: Command, hostile: Path) -> None:
    assert adagauss("rename", hostile, NAMES[0], "[/bold]").code == 0
    outcome = adagauss("forget", hostile, *NAMES[2:5])
    assert outcome.code == 0, outcome.err
    _check_harmless(outcome.out, 200)
    shown = adagauss("info", hostile).out
    assert "escape" not in shown
    assert "[/bold]" in shown


def test_figures_draw_them(adagauss: Command, hostile: Path) -> None:
    outcome = adagauss("evaluate", hostile, "seen", "--figures", ".")
    assert outcome.code == 0, outcome.err
    assert "no figures" not in outcome.err
    for name in ("confusion.png", "worst.png"):
        with Image.open(name) as image:
            assert image.width < 4000


def test_an_error_shows_them_harmlessly(adagauss: Command, hostile: Path) -> None:
    outcome = adagauss("forget", hostile, "\x1b[31mescapf")
    assert outcome.code == 2
    assert "\\x1b[31mescapf" in outcome.err
    assert "\x1b[31mescapf" not in outcome.err


def test_a_run_with_such_classes_is_shown(adagauss: Command, hostile: Path) -> None:
    outcome = adagauss("run", "-d", "seen", "-t", "2", "--out", "[bold]run", "--set", "stream.image_size=16", *SMALL)
    assert outcome.code == 0, outcome.err
    _check_harmless(outcome.out)


def test_a_cell_of_a_table_is_text_never_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(*output.table(("[i]head",), [["[/bold] \x1b[31m"]]))
    assert capsys.readouterr().out.splitlines() == ["[i]head", "[/bold] \\x1b[31m"]
    assert evenly_spaced(100, 5).tolist() == [0, 24, 49, 74, 99]


def test_a_name_of_a_megabyte_is_cut_at_once() -> None:
    assert clipped("a" * 2**20, 10) == "aaaaaaaaa…"
    assert cell_len(clipped("\u0301" * 2**20, 10)) <= 10
    assert len(clipped("\u0301" * 2**20, 10)) <= 50
