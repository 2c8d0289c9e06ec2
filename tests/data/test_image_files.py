from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from adagauss.data import folders
from adagauss.data.augment import Augmentation, boxes_of
from adagauss.data.decode import decode_image
from adagauss.data.folders import FileImages
from adagauss.data.images import Subset
from adagauss.errors import DataError
from adagauss.utils.progress import Advance, Reporter


@pytest.fixture
def paths(tmp_path: Path, write_image: Any) -> list[Path]:
    return [write_image(tmp_path / f"{i}.png", seed=i) for i in range(7)]


def everything(images: FileImages) -> torch.Tensor:
    return images.batch(torch.arange(len(images)))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


class Counting(Reporter):
    def __init__(self) -> None:
        self.totals: list[float] = []
        self.done = 0.0

    @contextmanager
    def progress(self, title: str, total: float) -> Iterator[Advance]:
        self.totals.append(total)

        def advance(note: str = "", step: float = 1.0) -> None:
            self.done += step

        yield advance


def grey_level(path: Path, channels: int = 3) -> list[int]:
    return [int(level) for level in decode_image(path, 4, channels)[:, 2, 2]]


def test_odd_modes_become_rgb(tmp_path: Path) -> None:
    cases = {
        "grey.png": (Image.new("L", (8, 8), 100), [100, 100, 100]),
        "bilevel.png": (Image.new("1", (8, 8), 1), [255, 255, 255]),
        "palette.png": (Image.new("RGB", (8, 8), (200, 10, 30)).convert("P"), None),
        "half-clear.png": (Image.new("RGBA", (8, 8), (0, 0, 0, 51)), [204, 204, 204]),
        "clear-grey.png": (Image.new("LA", (8, 8), (0, 0)), [255, 255, 255]),
        "deep.png": (Image.fromarray(np.full((8, 8), 257 * 90, dtype=np.uint16)), [90, 90, 90]),
        "deep.tif": (Image.fromarray(np.full((8, 8), 65535, dtype=np.uint16)), [255, 255, 255]),
    }
    for name, (image, expected) in cases.items():
        image.save(tmp_path / name)
        level = grey_level(tmp_path / name)
        assert level == expected if expected else level[0] > 150 > level[1], name


def test_cmyk_jpeg(tmp_path: Path) -> None:
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "red.jpg")
    red, green, blue = grey_level(tmp_path / "red.jpg")
    assert red > 240
    assert green < 15
    assert blue < 15


def test_palette_with_a_transparent_colour_shows_white_there(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([10, 20, 30] * 256)
    image.save(tmp_path / "p.gif", transparency=0)
    assert grey_level(tmp_path / "p.gif") == [255, 255, 255]


def test_pixels_without_a_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(DataError, match="no fixed range"):
        FileImages([tmp_path / "float.tif"], 4)


@pytest.mark.parametrize("size", [(30, 10), (10, 30)])
def test_the_centre_of_the_longer_side_is_kept(tmp_path: Path, size: tuple[int, int]) -> None:
    image = Image.new("L", size, 0)
    left, top = (size[0] - 10) // 2, (size[1] - 10) // 2
    image.paste(255, (left, top, left + 10, top + 10))
    image.save(tmp_path / "bar.png")
    square = decode_image(tmp_path / "bar.png", 5)
    assert (square[:, 1:-1, 1:-1] == 255).all()
    assert (square > 200).all()  # antialiasing mixes a little of the neighbours into the border


def test_an_image_of_the_right_size_keeps_its_pixels(tmp_path: Path, write_image: Any) -> None:
    path = write_image(tmp_path / "a.png", size=(12, 12))
    assert (decode_image(path, 12) == np.asarray(Image.open(path)).transpose(2, 0, 1)).all()


def test_one_channel(tmp_path: Path, write_image: Any) -> None:
    images = FileImages([write_image(tmp_path / "a.png")], 6, channels=1)
    assert images.shape == (1, 6, 6)
    assert everything(images).shape == (1, 1, 6, 6)


def test_memory_demand_and_worker_numbers_all_give_the_same(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    held = FileImages(paths, 6)
    on_demand = FileImages(paths, 6, cache_bytes=0)
    monkeypatch.setattr(folders, "WORKERS", 1)
    alone = FileImages(paths, 6)
    assert held.in_memory
    assert not on_demand.in_memory
    chosen = torch.tensor([5, 0, 5, 3])
    for images in (alone, on_demand):
        assert torch.equal(images.batch(chosen), held.batch(chosen))
    assert held.batch(chosen).dtype == torch.uint8
    assert len(held) == len(on_demand) == 7


def test_the_budget_is_exact(paths: list[Path]) -> None:
    needed = 7 * 3 * 6 * 6
    assert FileImages(paths, 6, cache_bytes=needed).in_memory
    assert not FileImages(paths, 6, cache_bytes=needed - 1).in_memory


def test_images_take_at_most_half_of_the_available_memory(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 7 * 3 * 6 * 6
    monkeypatch.setattr(folders, "FEW_BYTES", 0)
    for available, held in ((2 * needed, True), (2 * needed - 1, False), (0, False), (None, True)):
        monkeypatch.setattr(folders, "available_memory", lambda available=available: available)
        assert FileImages(paths, 6).in_memory == held


def test_an_empty_batch(paths: list[Path]) -> None:
    none = torch.empty(0, dtype=torch.long)
    for budget in (0, 2**20):
        assert FileImages(paths, 6, cache_bytes=budget).batch(none).shape == (0, 3, 6, 6)


def test_on_demand_images_can_be_sent_to_another_process(paths: list[Path]) -> None:
    images = FileImages(paths, 6, cache_bytes=0)
    copy = pickle.loads(pickle.dumps(images))
    assert torch.equal(everything(copy), everything(images))


@pytest.mark.parametrize("budget", [0, 2**20])
def test_bad_images_are_named_and_counted(paths: list[Path], budget: int) -> None:
    paths[1].write_bytes(b"not an image")
    paths[4].write_bytes(b"")
    with pytest.raises(
        DataError, match=r"2 of 7 images cannot be decoded: .*1\.png.*4\.png.*--skip-bad.*skip_bad=True"
    ):
        FileImages(paths, 6, cache_bytes=budget)


def test_only_a_few_bad_images_are_named(paths: list[Path]) -> None:
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(DataError, match="and 2 more"):
        FileImages(paths, 6)


@pytest.mark.parametrize("budget", [0, 2**20])
def test_positions_of_skipped_images_are_known(
    paths: list[Path], budget: int, caplog: pytest.LogCaptureFixture
) -> None:
    sound = FileImages(paths, 6)
    truncate(paths[1])
    images = FileImages(paths, 6, skip_bad=True, cache_bytes=budget)
    assert images.kept.tolist() == [0, 2, 3, 4, 5, 6]
    assert torch.equal(everything(images), sound.batch(images.kept))
    assert [(record.levelno, "1.png" in record.message) for record in caplog.records] == [(logging.WARNING, True)]


def test_a_truncated_jpeg_is_found(tmp_path: Path, write_image: Any) -> None:
    path = write_image(tmp_path / "a.jpg", size=(64, 64))
    truncate(path)
    with pytest.raises(DataError, match=r"a\.jpg"):
        FileImages([path], 6)
    on_demand = FileImages([path], 6, cache_bytes=0)  # its header is sound
    with pytest.raises(DataError, match="--skip-bad"):
        everything(on_demand)


def test_nothing_usable(paths: list[Path]) -> None:
    for path in paths:
        path.write_bytes(b"")
    with pytest.raises(DataError, match="none of 7 images"):
        FileImages(paths, 6, skip_bad=True)
    with pytest.raises(DataError, match="no image files"):
        FileImages([], 6)
    with pytest.raises(DataError, match="size"):
        FileImages(paths, 0)


def test_progress_knows_the_total(paths: list[Path]) -> None:
    counting = Counting()
    FileImages(paths, 6, reporter=counting)
    assert counting.totals == [7]
    assert counting.done == 7


def ends_of_red(width: int = 400, height: int = 300) -> Image.Image:
    """A noisy picture with red ends, which its central square does not show."""
    pixels = np.random.default_rng(0).integers(0, 100, (height, width, 3), dtype=np.uint8)
    pixels[:, :20] = pixels[:, -20:] = (255, 0, 0)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("budget", [0, 2**30])
@pytest.mark.parametrize("size", [(400, 300), (270, 700), (256, 256)])
def test_an_image_with_a_margin_is_resized_to_256_and_cropped_to_224(
    tmp_path: Path, size: tuple[int, int], budget: int
) -> None:
    picture = ends_of_red(*size)
    picture.save(tmp_path / "a.png")
    images = FileImages([tmp_path / "a.png"], 224, cache_bytes=budget, margin=True)
    assert images.shape == (3, 224, 224)
    scale = 256 / min(size)
    across, down = (round(side * scale) for side in size)
    left, top = round((across - 224) / 2), round((down - 224) / 2)
    resized = picture.resize((across, down), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1).astype(int)
    assert np.array_equal(everything(images)[0].numpy(), expected)


def test_random_crops_are_cut_from_the_whole_picture(tmp_path: Path) -> None:
    ends_of_red().save(tmp_path / "a.png")
    paths, rows = [tmp_path / "a.png"] * 40, torch.arange(40)
    augmentation, generator = Augmentation(crop_padding=0, flip=False, resized_crop=True), torch.Generator()
    found = []
    for images in (
        FileImages(paths, 224, margin=True),
        Subset(FileImages(paths, 224, margin=True, cache_bytes=0), rows),
        FileImages(paths, 224),
    ):
        changes = augmentation.draw(40, (224, 224), generator.manual_seed(0))
        found.append(changes.read(images, rows, torch.device("cpu")))
        assert torch.equal(changes.of(rows[7:9]).read(images, rows[7:9], torch.device("cpu")), found[-1][7:9])
    whole, on_demand, squares = found
    assert torch.equal(whole, on_demand)
    red = [((images[:, 0] > 0.9) & (images[:, 1] < 0.1)).flatten(1).any(1).sum() for images in (whole, squares)]
    assert red[0] > 5
    assert red[1] == 0
    # Oracle: the same boxes cut from the picture with a shorter side of 256.
    tries = torch.rand(4, 40, 10, generator=generator.manual_seed(0)).transpose(0, 1)
    small = ends_of_red().resize((341, 256), Image.Resampling.BILINEAR)
    for image, (top, left, height, width) in zip(
        whole, boxes_of(tries, torch.tensor([[256, 341]] * 40), (0.08, 1.0)).tolist(), strict=True
    ):
        window = small.crop((left, top, left + width, top + height)).resize((224, 224), Image.Resampling.BILINEAR)
        assert torch.equal(image, torch.from_numpy(np.array(window).transpose(2, 0, 1) / np.float32(255)))
