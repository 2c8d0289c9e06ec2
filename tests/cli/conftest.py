"""Commands within this process, and small photographs for them."""

from __future__ import annotations

import io
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
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


def _typed(patch: pytest.MonkeyPatch, command: Sequence[str | Path], columns: int = 80) -> int:
    """The exit code of a command, typed into a terminal of this width."""
    patch.setenv("COLUMNS", str(columns))
    patch.setattr("sys.argv", ["adagauss", *(os.fspath(word) for word in command)])
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


@pytest.fixture
def adagauss(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """A function that runs a command, at 80 columns unless told, as from a shell."""

    def call(*command: str | Path, columns: int = 80) -> Outcome:
        capfd.readouterr()
        return Outcome(_typed(monkeypatch, command, columns), *capfd.readouterr())

    return call


def prepare(folder: Path, *command: str | Path) -> Outcome:
    """Run a command in a folder, for fixtures that several tests share."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        assert _typed(patch, command) == 0, err.getvalue()
    return Outcome(0, out.getvalue(), err.getvalue())


SETTINGS = ("--set", "stream.classes=4", "--set", "drift.recipe.epochs=5", "--set", "drift.samples=200")
RUN = ("run", "--dataset", "digits", "--tasks", "2,2", "--epochs", "2", *SETTINGS, "--out", "out")


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A finished run, which is not to be changed, and what the command printed."""
    folder = tmp_path_factory.mktemp("digits")
    return folder / "out", prepare(folder, *RUN)


def photograph(label: str, number: int, side: int = 16) -> Image.Image:
    """A picture with stripes whose direction and colour belong to the label, and noise that belongs to the number."""
    look = np.random.default_rng(zlib.crc32(label.encode("utf-8", "surrogateescape")))
    angle, wave, colour = look.uniform(0, np.pi), look.uniform(2, 5), look.uniform(60, 220, 3)
    chance = np.random.default_rng(number)
    rows, columns = np.mgrid[:side, :side]
    stripes = np.sin((np.cos(angle) * rows + np.sin(angle) * columns) * 2 * np.pi / wave + chance.uniform(0, 6))
    pixels = colour + 30 * stripes[..., None] + chance.normal(0, 12, (side, side, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def fill(folder: Path, classes: Sequence[str], count: int = 12, first: int = 0) -> Path:
    """A folder with one folder of pictures per class."""
    for label in classes:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            photograph(label, number).save(folder / label / f"{number:03d}.png")
    return folder


@pytest.fixture
def photographs() -> Photographs:
    """A function that fills a folder with one folder of pictures per class."""
    return fill


@pytest.fixture(scope="session")
def taught_birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of three classes and their pictures, `seen` and `unseen`; only to be copied."""
    folder = tmp_path_factory.mktemp("birds")
    fill(folder / "seen", ("owl", "robin", "wren"))
    fill(folder / "unseen", ("owl", "robin", "wren"), 6, first=100)
    prepare(folder, "teach", "birds.safetensors", "seen", *SMALL)
    return folder


@pytest.fixture
def birds(taught_birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of three classes, next to the folders `seen` and `unseen`."""
    shutil.copytree(taught_birds, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "birds.safetensors"
