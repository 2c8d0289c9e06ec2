"""Commands within this process, and small photographs for them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from adagauss import cli

SMALL = ("--method", "exact", "--set", "backbone.options.filters=20", "--set", "backbone.options.patches=2000")
Photographs = Callable[..., Path]


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """The error stream as one line."""
        return " ".join(self.err.split())


Command = Callable[..., Outcome]


@pytest.fixture
def adagauss(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """A function that runs a command at 80 columns, as from a shell."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str | Path) -> Outcome:
        capfd.readouterr()
        monkeypatch.setattr("sys.argv", ["adagauss", *(os.fspath(word) for word in words)])
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        else:
            code = 0
        return Outcome(code, *capfd.readouterr())

    return call


def photograph(label: str, number: int, side: int = 16) -> Image.Image:
    """A picture with stripes whose direction and colour belong to the label, and noise that belongs to the number."""
    look = np.random.default_rng(zlib.crc32(label.encode("utf-8", "surrogateescape")))
    angle, wave, colour = look.uniform(0, np.pi), look.uniform(2, 5), look.uniform(60, 220, 3)
    chance = np.random.default_rng(number)
    rows, columns = np.mgrid[:side, :side]
    stripes = np.sin((np.cos(angle) * rows + np.sin(angle) * columns) * 2 * np.pi / wave + chance.uniform(0, 6))
    pixels = colour + 30 * stripes[..., None] + chance.normal(0, 12, (side, side, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture
def photographs() -> Photographs:
    """A function that fills a folder with one folder of pictures per class."""

    def fill(folder: Path, classes: Sequence[str], count: int = 12, first: int = 0) -> Path:
        for label in classes:
            (folder / label).mkdir(parents=True, exist_ok=True)
            for number in range(first, first + count):
                photograph(label, number).save(folder / label / f"{number:03d}.png")
        return folder

    return fill


@pytest.fixture
def birds(adagauss: Command, photographs: Photographs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of three classes, beside the folders `seen` and `unseen`."""
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path / "seen", ("owl", "robin", "wren"))
    photographs(tmp_path / "unseen", ("owl", "robin", "wren"), 6, first=100)
    outcome = adagauss("teach", "birds.safetensors", "seen", *SMALL)
    assert outcome.code == 0, outcome.err
    return tmp_path / "birds.safetensors"
