"""Batched augmentation against one image at a time with Pillow and numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from pydantic import ValidationError
from torch import Tensor

from adagauss.data import augment
from adagauss.data.augment import MATRICES, OPERATIONS, Augmentation, apply_operations, mirrored, to_float
from adagauss.errors import ConfigError, DataError

Op = Callable[[Tensor, Tensor], Tensor]
Oracle = Callable[[Image.Image, float], Image.Image]
BATCH = 6
SEEDS = st.integers(0, 2**31 - 1)
CHANNELS = st.sampled_from([1, 3])
SIZES = st.sampled_from([(32, 32), (20, 31), (9, 5)])
some_examples = settings(max_examples=15, deadline=None)


def random_images(seed: int, channels: int = 3, size: tuple[int, int] = (32, 32), batch: int = BATCH) -> Tensor:
    """Images with different ranges of grey levels, the last one of a single level."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.randint(0, 120, (batch, channels, 1, 1), generator=generator)
    span = torch.randint(1, 136, (batch, channels, 1, 1), generator=generator)
    noise = torch.rand(batch, channels, *size, generator=generator)
    images = (low + span * noise**2).to(torch.uint8)
    if batch > 1:
        images[-1] = images[-1, 0, 0, 0]
    return images


def to_pillow(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else np.ascontiguousarray(array))


def from_pillow(image: Image.Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def one_by_one(images: Tensor, magnitudes: Tensor, oracle: Oracle) -> Tensor:
    pairs = zip(images, magnitudes.tolist(), strict=True)
    return torch.stack([from_pillow(oracle(to_pillow(image), magnitude)) for image, magnitude in pairs])


def warp(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


def by_matrix(name: str) -> Op:
    return lambda images, magnitudes: augment.affine(images, MATRICES[name](magnitudes, *images.shape[-2:]))


COLOUR_OPERATIONS: dict[str, tuple[Op, Oracle, tuple[float, float]]] = {
    "brightness": (augment.brightness, lambda i, m: ImageEnhance.Brightness(i).enhance(m), (0, 2)),
    "contrast": (augment.contrast, lambda i, m: ImageEnhance.Contrast(i).enhance(m), (0, 2)),
    "color": (augment.color, lambda i, m: ImageEnhance.Color(i).enhance(m), (0, 2)),
    "sharpness": (augment.sharpness, lambda i, m: ImageEnhance.Sharpness(i).enhance(m), (0, 2)),
    "posterize": (augment.posterize, lambda i, m: ImageOps.posterize(i, int(m)), (1, 9)),
    "solarize": (augment.solarize, lambda i, m: ImageOps.solarize(i, m), (0, 256)),  # type: ignore[arg-type]
    "autocontrast": (augment.COLOURS["autocontrast"], lambda i, _: ImageOps.autocontrast(i), (0, 1)),
    "equalize": (augment.COLOURS["equalize"], lambda i, _: ImageOps.equalize(i), (0, 1)),
    "invert": (augment.COLOURS["invert"], lambda i, _: ImageOps.invert(i), (0, 1)),
}
WARPS: dict[str, tuple[Op, Oracle, float]] = {
    "shear_x": (by_matrix("shear_x"), lambda i, m: warp(i, (1, m, 0, 0, 1, 0)), 0.99),
    "shear_y": (by_matrix("shear_y"), lambda i, m: warp(i, (1, 0, 0, m, 1, 0)), 0.99),
    "translate_x": (by_matrix("translate_x"), lambda i, m: warp(i, (1, 0, -int(m), 0, 1, 0)), 32.0),
    "translate_y": (by_matrix("translate_y"), lambda i, m: warp(i, (1, 0, 0, 0, 1, -int(m))), 32.0),
    "rotate": (by_matrix("rotate"), lambda i, m: i.rotate(m, Image.Resampling.BILINEAR), 135.0),
}


@pytest.mark.parametrize("name", COLOUR_OPERATIONS)
@some_examples
@given(seed=SEEDS, channels=CHANNELS, size=SIZES)
def test_colour_operation_equals_pillow(name: str, seed: int, channels: int, size: tuple[int, int]) -> None:
    operation, oracle, (low, high) = COLOUR_OPERATIONS[name]
    images = random_images(seed, channels, size)
    magnitudes = low + (high - low) * torch.rand(BATCH, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(operation(images, magnitudes), one_by_one(images, magnitudes, oracle))


@pytest.mark.parametrize("name", COLOUR_OPERATIONS)
def test_colour_operation_equals_pillow_at_the_ends_of_its_range(name: str) -> None:
    operation, oracle, (low, high) = COLOUR_OPERATIONS[name]
    images = random_images(0)
    for end in (low, 1.0, high - 1 if name in ("posterize", "solarize") else high):
        magnitudes = torch.full((BATCH,), end)
        assert torch.equal(operation(images, magnitudes), one_by_one(images, magnitudes, oracle))


@pytest.mark.parametrize("name", WARPS)
@some_examples
@given(seed=SEEDS, channels=CHANNELS, size=SIZES)
def test_geometric_operation_is_within_one_grey_level_of_pillow(
    name: str, seed: int, channels: int, size: tuple[int, int]
) -> None:
    """Single against double precision: truncation may fall on the other side of a whole level, hence 1.

    On the outline a point may fall in or out by rounding: at most 1 pixel in 500 may differ by more.
    """
    operation, oracle, end = WARPS[name]
    images = random_images(seed, channels, size)
    magnitudes = end * (2 * torch.rand(BATCH, generator=torch.Generator().manual_seed(seed)) - 1)
    difference = (operation(images, magnitudes).int() - one_by_one(images, magnitudes, oracle).int()).abs()
    assert (difference > 1).float().mean() <= 1 / 500


@pytest.mark.parametrize("name", WARPS)
def test_geometric_operation_of_no_strength_changes_nothing(name: str) -> None:
    images = random_images(3, size=(224, 224))
    assert torch.equal(WARPS[name][0](images, torch.zeros(BATCH)), images)


@pytest.mark.parametrize("name", ["translate_x", "translate_y"])
def test_translation_moves_pixels_unchanged(name: str) -> None:
    operation, oracle, _ = WARPS[name]
    images, magnitudes = random_images(4), torch.tensor([-32.0, -31, -7.9, 1, 16, 32])
    assert torch.equal(operation(images, magnitudes), one_by_one(images, magnitudes, oracle))


def test_rotation_by_right_angles_is_exact_and_counter_clockwise() -> None:
    images = random_images(5)
    turned = by_matrix("rotate")(images[:3], torch.tensor([90.0, 180.0, -90.0]))
    expected = torch.stack([torch.rot90(images[i], k, (1, 2)) for i, k in enumerate((1, 2, 3))])
    assert torch.equal(turned, expected)


@some_examples
@given(seed=SEEDS, channels=CHANNELS, size=SIZES, padding=st.integers(0, 5))
def test_padded_crop_equals_slicing(seed: int, channels: int, size: tuple[int, int], padding: int) -> None:
    images = random_images(seed, channels, size)
    tops, lefts = torch.randint(2 * padding + 1, (2, BATCH), generator=torch.Generator().manual_seed(seed))
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    expected = [
        padded[i, :, top : top + size[0], left : left + size[1]]
        for i, (top, left) in enumerate(zip(tops.tolist(), lefts.tolist(), strict=True))
    ]
    assert np.array_equal(augment.padded_crop(images, padding, tops, lefts).numpy(), np.stack(expected))


def test_flips_equal_slicing() -> None:
    images, chosen = random_images(6), torch.tensor([True, False, True, True, False, False])
    flipped = images.numpy()[..., ::-1]
    assert torch.equal(mirrored(BATCH)(images), to_float(images.flip(-1)))
    expected = np.where(chosen.numpy()[:, None, None, None], flipped, images.numpy())
    assert np.array_equal(augment.flip_where(images, chosen).numpy(), expected)


@some_examples
@given(seed=SEEDS, channels=CHANNELS, size=SIZES)
def test_resized_crop_is_within_one_grey_level_of_pillow(seed: int, channels: int, size: tuple[int, int]) -> None:
    """Pillow resizes in fixed point and in two rounded passes, hence 1."""
    images = random_images(seed, channels, size)
    tries = torch.rand(BATCH, 4, 10, generator=torch.Generator().manual_seed(seed))
    boxes = augment.boxes_of(tries, torch.tensor([size] * BATCH), (0.08, 1.0))
    result = augment.resized_crop(images, tries, (0.08, 1.0))
    for image, (top, left, height, width), output in zip(images, boxes.tolist(), result, strict=True):
        window = to_pillow(image[:, top : top + height, left : left + width])
        expected = from_pillow(window.resize((size[1], size[0]), Image.Resampling.BILINEAR))
        assert (output.int() - expected.int()).abs().max() <= 1


@some_examples
@given(seed=SEEDS, size=st.sampled_from([(32, 32), (24, 40), (4, 60), (60, 4)]))
def test_boxes_lie_in_the_image_with_allowed_area_and_ratio(seed: int, size: tuple[int, int]) -> None:
    tries = torch.rand(200, 4, 10, generator=torch.Generator().manual_seed(seed))
    boxes = augment.boxes_of(tries, torch.tensor([size] * 200), (0.25, 0.5))
    top, left, height, width = boxes.unbind(1)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (top + height <= size[0]).all()
    assert (left + width <= size[1]).all()
    # sides are rounded to whole pixels: half a pixel of play each
    assert ((width - 0.5) / (height + 0.5) <= 4 / 3 + 1e-4).all()
    assert ((width + 0.5) / (height - 0.5) >= 3 / 4 - 1e-4).all()
    if size == (32, 32):
        assert ((height + 0.5) * (width + 0.5) >= 0.25 * 1024).all()
        assert ((height - 0.5) * (width - 0.5) <= 0.5 * 1024).all()


def test_box_falls_back_to_the_centre_where_no_ratio_fits() -> None:
    tries = torch.rand(50, 4, 10, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        augment.boxes_of(tries, torch.tensor([[4, 60]] * 50), (1.0, 1.0)), torch.tensor([0, 27, 4, 5]).expand(50, 4)
    )


@some_examples
@given(seed=SEEDS, size=SIZES, side=st.integers(0, 17))
def test_cutout_equals_slicing(seed: int, size: tuple[int, int], side: int) -> None:
    images = to_float(random_images(seed, size=size))
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(size[0], (BATCH,), generator=generator)
    columns = torch.randint(size[1], (BATCH,), generator=generator)
    expected = images.clone()
    for image, row, column in zip(expected, rows.tolist(), columns.tolist(), strict=True):
        top, left = row - side // 2, column - side // 2
        image[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 0
    assert torch.equal(augment.cutout(images, side, rows, columns), expected)


@some_examples
@given(seed=SEEDS, channels=CHANNELS, batch=st.integers(1, 40))
def test_grouped_operations_equal_single_ones(seed: int, channels: int, batch: int) -> None:
    images = random_images(seed, channels, batch=batch)
    generator = torch.Generator().manual_seed(seed)
    operations = torch.randint(len(OPERATIONS), (batch,), generator=generator)
    magnitudes = augment._strengths(31, 0.9, (32, 32), 135, 0.9, 6)[
        operations, torch.randint(31, (batch,), generator=generator)
    ]
    together = apply_operations(images, operations, magnitudes)
    for i in range(batch):
        name = OPERATIONS[int(operations[i])]
        image, magnitude = images[i : i + 1], magnitudes[i : i + 1]
        if name in WARPS:
            expected = WARPS[name][0](image, magnitude)
        elif name in COLOUR_OPERATIONS:
            is_factor = name in ("brightness", "contrast", "color", "sharpness")
            expected = COLOUR_OPERATIONS[name][0](image, 1 + magnitude if is_factor else magnitude)
        else:
            expected = image
        assert torch.equal(together[i : i + 1], expected), name


def test_trivial_strengths_reach_the_wide_ranges() -> None:
    [(operations, magnitudes)] = augment.draw_trivial(20_000, torch.Generator().manual_seed(0))
    strengths = {name: magnitudes[operations == number].abs() for number, name in enumerate(OPERATIONS)}
    ends = {"shear_x": (0, 0.99), "translate_y": (0, 32), "rotate": (0, 135), "color": (0, 0.99)}
    for name, (low, high) in {**ends, "posterize": (2, 8), "solarize": (0, 255)}.items():
        assert strengths[name].min().item() == pytest.approx(low)
        assert strengths[name].max().item() == pytest.approx(high)


def test_policies_draw_every_operation_equally_often() -> None:
    pairs = augment.draw_trivial(14_000, torch.Generator().manual_seed(0))
    pairs += augment.draw_auto(14_000, (2, 2), torch.Generator().manual_seed(0))
    drawn = [operations for operations, _ in pairs]
    trivial = torch.bincount(drawn[0], minlength=len(OPERATIONS))
    assert trivial[OPERATIONS.index("invert")] == 0
    assert ((trivial[trivial > 0] - 1000).abs() < 150).all()
    assert (trivial > 0).sum() == 14
    # the first operation of the 25 pairs is a translation in y with chances (0.4 + 0.9 + 0.7) / 25
    share = (drawn[1] == OPERATIONS.index("translate_y")).float().mean().item()
    assert share == pytest.approx(2.0 / 25, abs=0.01)
    # no pair has a shear as its second operation
    assert not (drawn[2] == OPERATIONS.index("shear_y")).any()


EVERYTHING = [
    Augmentation(policy="trivial"),
    Augmentation(policy="autoaugment", cutout=8),
    Augmentation(crop_padding=0, resized_crop=True, brightness=63 / 255, cutout=16),
    Augmentation(crop_padding=2, resized_crop=True, brightness=1.5, policy="trivial", cutout=5),
]


@pytest.mark.parametrize("augmentation", EVERYTHING)
@pytest.mark.parametrize("shape", [(64, 3, 32, 32), (7, 1, 20, 28), (1, 3, 32, 32), (0, 3, 8, 8)])
def test_pipeline_gives_repeatable_floats_in_unit_range(
    augmentation: Augmentation, shape: tuple[int, int, int, int]
) -> None:
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    first = augmentation(images, torch.Generator().manual_seed(7))
    again = augmentation(images, torch.Generator().manual_seed(7))
    assert first.shape == shape
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert torch.equal(images, before)
    assert ((first >= 0) & (first <= 1)).all()
    if shape[0] > 1:
        assert not torch.equal(first, augmentation(images, torch.Generator().manual_seed(8)))


@pytest.mark.parametrize("augmentation", EVERYTHING)
def test_an_image_does_not_depend_on_the_content_of_others(augmentation: Augmentation) -> None:
    images, others = random_images(1, batch=40), random_images(2, batch=40)
    kept = torch.arange(40) % 3 == 0
    mixed = torch.where(kept[:, None, None, None], images, others)
    first = augmentation(images, torch.Generator().manual_seed(3))
    second = augmentation(mixed, torch.Generator().manual_seed(3))
    assert torch.equal(first[kept], second[kept])


@pytest.mark.parametrize("augmentation", EVERYTHING)
def test_some_images_are_changed_as_they_are_within_the_whole_batch(augmentation: Augmentation) -> None:
    images, rows = random_images(1, batch=40), torch.tensor([3, 17, 18, 39])
    generator = torch.Generator().manual_seed(3)
    changes = augmentation.draw(40, (images.shape[2], images.shape[3]), generator)
    assert torch.equal(changes.of(rows)(images[rows]), augmentation(images, torch.Generator().manual_seed(3))[rows])
    assert torch.equal(generator.get_state(), _state_after(augmentation, images))
    assert changes.of(rows[:0])(images[:0]).shape == (0, *images.shape[1:])


def _state_after(augmentation: Augmentation, images: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    augmentation(images, generator)
    return generator.get_state()


def test_brightness_draws_factors_from_the_given_range() -> None:
    images = torch.full((500, 1, 2, 2), 100, dtype=torch.uint8)
    levels = 255 * Augmentation(crop_padding=0, flip=False, brightness=0.5)(images, torch.Generator())[:, 0, 0, 0]
    assert 49 <= levels.min() < 55
    assert 145 < levels.max() <= 150
    assert levels.mean().item() == pytest.approx(100, abs=4)


def test_crop_reaches_every_offset_and_flip_every_second_image() -> None:
    images = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    images[:, :, 4, 4] = 255
    cropped = Augmentation(crop_padding=4, flip=False)(images, torch.Generator().manual_seed(0))
    assert (cropped.sum(0) > 0).all()
    images[:, :, :, 5:] = 255
    flipped = Augmentation(crop_padding=0)(images, torch.Generator().manual_seed(0))
    assert flipped[:, 0, 0, 0].mean().item() == pytest.approx(0.5, abs=0.05)


def test_none_only_converts() -> None:
    images = random_images(0)
    expected = images.numpy().astype(np.float32) / 255
    assert np.array_equal(Augmentation.none()(images, torch.Generator()).numpy(), expected)


def test_wrong_images_and_settings_are_refused() -> None:
    with pytest.raises(DataError, match="uint8"):
        Augmentation()(torch.zeros(2, 3, 8, 8), torch.Generator())
    with pytest.raises(DataError, match="shape"):
        Augmentation()(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.Generator())
    with pytest.raises(ValidationError, match="smallest"):
        Augmentation(resized_crop_scale=(0.9, 0.1))
    with pytest.raises(ConfigError, match="did you mean 'cutout'"):
        Augmentation.of({"cutuot": 3})
