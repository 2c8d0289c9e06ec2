"""The line that says what a dataset is, and the sentence about pixels on another scale."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.data import fingerprint as module
from adagauss.data.dataset import Dataset, ReadOptions, load_dataset
from adagauss.data.fingerprint import fingerprint
from adagauss.data.images import ArrayImages, Images, LabelledImages, PixelRange, merge_pixel_ranges, pixel_range
from adagauss.methods import make_method
from adagauss.utils.files import open_regular


def arrays(classes: tuple[Any, ...] = ("ant", "bee")) -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    part = LabelledImages(ArrayImages(pixels), torch.tensor([0, 1, 0, 1, 0, 1]), classes)
    return Dataset("some", part, part)


def test_every_change_of_an_array_dataset_changes_the_line() -> None:
    def with_train(**changes: Any) -> Dataset:
        return replace(arrays(), train=replace(arrays().train, **changes))

    dimmer = arrays().train.images.batch(torch.arange(6))
    dimmer[5, 2, 7, 7] ^= 1
    variants = [
        arrays(),
        with_train(images=ArrayImages(dimmer)),
        with_train(targets=torch.tensor([1, 0, 0, 1, 0, 1])),
        arrays(("ant", "bees")),
        arrays(("bee", "ant")),
        arrays((0, 1)),
        arrays(("0", "1")),
        with_train(images=ArrayImages(dimmer.reshape(6, 3, 4, 16))),
        replace(arrays(), train=arrays().train.of_classes(["ant"])),
        replace(arrays(), train=arrays().train.of_classes(["bee"])),
    ]
    lines = [fingerprint(dataset) for dataset in variants]
    assert len(set(lines)) == len(lines)
    assert fingerprint(arrays()) == lines[0]
    assert all(line.startswith("1:") and len(line) == 66 for line in lines)


@pytest.fixture
def folder(tmp_path: Path, write_image: Any) -> Path:
    for label in ("ant", "bee"):
        for number in range(4):
            write_image(tmp_path / "here" / label / f"{number}.png", seed=number)
    return tmp_path / "here"


def line_of(folder: Path, **options: Any) -> str:
    return fingerprint(load_dataset(f"folder:{folder}", ReadOptions(size=8, **options)))


def test_a_copy_elsewhere_with_other_dates_is_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    before = line_of(folder)
    shutil.copytree(folder, tmp_path / "there")
    for path in (tmp_path / "there").rglob("*.png"):
        os.utime(path, (1, 1))
    assert line_of(tmp_path / "there") == before
    assert line_of(folder, cache_bytes=0) == before


def test_every_change_of_files_changes_the_line(folder: Path, write_image: Any) -> None:
    lines = [line_of(folder)]
    write_image(folder / "ant" / "0.png", seed=50)
    lines.append(line_of(folder))
    (folder / "ant" / "1.png").rename(folder / "ant" / "9.png")
    lines.append(line_of(folder))
    (folder / "bee").rename(folder / "wasp")
    lines.append(line_of(folder))
    (folder / "ant" / "9.png").unlink()
    lines.append(line_of(folder))
    assert len(set(lines)) == len(lines)


def test_of_many_files_only_some_are_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load_dataset(f"folder:{folder}", ReadOptions(size=8))
    opened: list[Path] = []

    def counted(path: Path) -> Any:
        opened.append(path)
        return open_regular(path)

    monkeypatch.setattr(module, "open_regular", counted)
    monkeypatch.setattr(module, "SAMPLED", 2)
    fingerprint(dataset)
    assert len(opened) == 2 + 2


class Computed:
    """Images of a kind of one's own."""

    shape = (1, 4, 4)

    def __init__(self, level: int) -> None:
        self.level = level

    def __len__(self) -> int:
        return 3

    def batch(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.full((len(indices), *self.shape), self.level, dtype=torch.uint8)


def test_images_of_other_kinds_are_told_apart() -> None:
    def line(images: Images) -> str:
        part = LabelledImages(images, torch.tensor([0, 0, 1]), ("a", "b"))
        return fingerprint(Dataset("computed", part, part))

    assert line(Computed(3)) == line(Computed(3)) != line(Computed(4))


def scale_of(pixels: Any) -> PixelRange:
    return pixel_range(ArrayImages(np.asarray(pixels)))


PHOTOS = np.random.default_rng(0).integers(0, 256, (20, 3, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize(
    "pixels",
    [(PHOTOS > 127).astype(np.uint8), PHOTOS / 255 / 255, PHOTOS // 16, np.zeros_like(PHOTOS)],
    ids=["whole numbers in 0..1", "divided twice", "four bits", "black"],
)
def test_pixels_on_another_scale_are_noticed_both_ways(pixels: Any) -> None:
    with pytest.warns(UserWarning, match="they seem to be on another scale"):
        merge_pixel_ranges(scale_of(PHOTOS), scale_of(pixels))
    with pytest.warns(UserWarning, match="earlier images seem"):
        assert merge_pixel_ranges(scale_of(pixels), scale_of(PHOTOS))[1] == 255


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pixels", [PHOTOS, PHOTOS / 255, PHOTOS // 3, PHOTOS[:1], np.full_like(PHOTOS, 40)])
def test_pixels_on_the_same_scale_give_no_warning(pixels: Any) -> None:
    merge_pixel_ranges(scale_of(PHOTOS), scale_of(pixels))
    merge_pixel_ranges(scale_of(pixels), scale_of(PHOTOS))
    merge_pixel_ranges((0, 0), (0, 0))


def part_of(pixels: Any, label: str) -> LabelledImages:
    return LabelledImages.from_labels(ArrayImages(np.asarray(pixels)), [label] * len(pixels))


def test_a_learner_notices_another_scale_in_a_later_task_and_after_a_file(tmp_path: Path) -> None:
    learner = Learner(make_method("exact", settings={"backbone.options.filters": 8}), (3, 8, 8), [0.5] * 3, [0.5] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.learn(part_of(PHOTOS, "bird"))
        learner.learn(part_of(np.sqrt(PHOTOS / 255), "fish"))
    learner.save(tmp_path / "learner")
    loaded = Learner.load(tmp_path / "learner")
    with pytest.warns(UserWarning, match="the brightest pixel of these images is 1, of earlier tasks 255"):
        loaded.learn(part_of((PHOTOS > 127).astype(np.uint8), "moth"))
    assert loaded.classes == ["bird", "fish", "moth"]
