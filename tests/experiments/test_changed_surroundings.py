"""A run is not resumed on other data; other software, another machine or a missing folder are reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adagauss.data.dataset import Dataset, load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import CheckpointError
from adagauss.experiments.environment import COMMAND, command, environment
from adagauss.experiments.grid import Messages
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import run
from adagauss.utils.progress import Reporter
from tests.experiments.runs import metrics_of, quick_config

CONFIG = quick_config("finetune")


def with_part(part: str, change: Callable[[LabelledImages], LabelledImages]) -> Dataset:
    digits = load_dataset("digits")
    if part == "train":
        return replace(digits, train=change(digits.train))
    return replace(digits, test=change(digits.test))


def more(part: LabelledImages) -> LabelledImages:
    rows = torch.cat([torch.arange(len(part)), torch.arange(30)])
    return LabelledImages(ArrayImages(part.images.batch(rows)), part.targets[rows], part.classes)


def other_pixel(part: LabelledImages) -> LabelledImages:
    pixels = part.images.batch(torch.arange(len(part))).clone()
    pixels[7, 0, 3, 3] ^= 1
    return LabelledImages(ArrayImages(pixels), part.targets, part.classes)


def other_label(part: LabelledImages) -> LabelledImages:
    targets = part.targets.clone()
    targets[7] = (targets[7] + 1) % 10
    return LabelledImages(part.images, targets, part.classes)


@pytest.mark.parametrize(
    ("part", "change", "named"),
    [
        ("train", more, "number and size of the training images, labels of the training images, content of the"),
        ("train", other_pixel, "(content of the training images changed"),
        ("train", other_label, "(labels of the training images changed"),
        ("test", other_pixel, "(content of the test images changed"),
    ],
)
def test_changed_data_are_refused_and_named(
    finished: Path, part: str, change: Callable[[LabelledImages], LabelledImages], named: str
) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="was started on other data") as raised:
        run(CONFIG, finished, resume=True, dataset=with_part(part, change))
    assert named in str(raised.value)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("key", sorted(environment()))
def test_every_difference_of_the_environment_is_reported(finished: Path, key: str) -> None:
    file = finished / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), key: "something else"}))
    reporter = Messages()
    run(CONFIG, finished, resume=True, reporter=reporter)
    (heard,) = reporter.texts
    assert f"{'code' if key == 'source' else key} (something else, now " in heard
    assert "so its numbers may differ" in heard


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '"text"', "[" * 100_000])
@pytest.mark.parametrize("name", ["environment.json", "data.json", "origins.json"])
def test_a_damaged_file_next_to_the_results_is_reported(finished: Path, name: str, content: str) -> None:
    (finished / name).write_text(content, encoding="utf-8")
    reporter = Messages()
    run(CONFIG, finished, resume=True, reporter=reporter)
    assert [f"{name} is missing or damaged" in heard for heard in reporter.texts] == [True] * (name != "origins.json")
    assert metrics_of(finished)
    assert isinstance(RunFolder(finished).origins, dict)


@pytest.mark.parametrize(
    ("program", "shown"), [("/usr/bin/adagauss", "adagauss"), ("/lib/adagauss/__main__.py", "python -m adagauss")]
)
def test_the_stored_command_is_quoted_for_a_shell(program: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program, "run", "--dataset", "my birds"])
    assert command() == {COMMAND: f"{shown} run --dataset 'my birds'"}
    assert COMMAND not in environment(), "a run resumed by another command would complain"


class Removing(Reporter):
    """Removes a folder as soon as some work starts."""

    def __init__(self, folder: Path, when: str, remake: bool) -> None:
        self.folder, self.when, self.remake = folder, when, remake

    def progress(self, title: str, total: float) -> object:  # type: ignore[override]
        if self.when in title and self.folder.exists():
            shutil.rmtree(self.folder)
            if self.remake:
                self.folder.mkdir()
                (self.folder / "lock").touch()
        return super().progress(title, total)


@pytest.mark.parametrize(("when", "remake"), [("task 1: training", True), ("task 2: training", False)])
def test_a_run_whose_folder_is_removed_stops_without_saving(tmp_path: Path, when: str, remake: bool) -> None:
    with pytest.raises(CheckpointError, match="was removed or replaced while a run was writing"):
        run(CONFIG, tmp_path / "run", reporter=Removing(tmp_path / "run", when, remake))
    assert not list(tmp_path.rglob("*.safetensors"))
