"""The dictionary of patches: every step against its definition, and the module against all of them together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.backbones.patches import (
    DEVIATION_FLOOR,
    PatchFeatures,
    PatchSettings,
    draw_patches,
    fit_patches,
    fold,
    normalise_contrast,
    photograph_crops,
    signed_kmeans,
    whiten_patches,
    windows,
)
from adagauss.backbones.patches import photographs as cropped
from adagauss.data.images import ArrayImages
from adagauss.errors import ConfigError, DataError

SMALL = PatchSettings(filters=10, patch_sizes=(3, 4), patches=400, rounds=3, dictionary_from="first_task")


def photographs(count: int = 12, shape: tuple[int, int, int] = (3, 9, 11), seed: int = 0) -> ArrayImages:
    """Smooth random images: neighbouring pixels are alike, as in photographs."""
    generator = torch.Generator().manual_seed(seed)
    channels, height, width = shape
    coarse = torch.rand(count, channels, height // 2 + 1, width // 2 + 1, generator=generator)
    return ArrayImages(F.interpolate(coarse, (height, width), mode="bilinear"))


def pixels(images: ArrayImages) -> Tensor:
    return images.pixels.float() / 255


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_windows_are_the_patches_at_their_places() -> None:
    images = torch.arange(2 * 3 * 6 * 7).view(2, 3, 6, 7)
    view = windows(images, 3, stride=2)
    assert view.shape == (2, 2, 3, 3, 3, 3)
    assert torch.equal(view[1, 1, 2], images[1, :, 2:5, 4:7].permute(1, 2, 0))


def test_drawn_patches_come_from_the_images_and_from_all_of_them() -> None:
    images = ArrayImages(torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 1, 8, 8).contiguous())
    patches = draw_patches(images, 4, 50, seeded())
    assert patches.shape == (50, 16)
    assert torch.equal(patches.amin(1), patches.amax(1))
    assert torch.bincount(patches[:, 0].long()).tolist() == [10] * 5


def test_drawn_patches_lie_everywhere_in_an_image() -> None:
    image = torch.arange(36, dtype=torch.uint8).view(1, 1, 6, 6)
    corners = draw_patches(ArrayImages(image), 5, 200, seeded())[:, 0]
    assert sorted(set(corners.tolist())) == [0, 1, 6, 7]


def test_contrast_is_normalised_as_defined_and_flat_patches_become_zero() -> None:
    patches = np.random.default_rng(0).uniform(0, 255, (20, 27)).astype(np.float32)
    expected = (patches - patches.mean(1, keepdims=True)) / np.sqrt(patches.var(1, keepdims=True) + 10)
    torch.testing.assert_close(normalise_contrast(torch.from_numpy(patches)), torch.from_numpy(expected))
    assert not normalise_contrast(torch.full((1, 12), 77.0)).any()


def correlated() -> Tensor:
    return torch.randn(500, 6, generator=seeded(), dtype=torch.float64) @ torch.randn(
        6, 6, generator=seeded(1), dtype=torch.float64
    )


def test_whitened_patches_have_the_covariance_that_epsilon_leaves() -> None:
    points = correlated()
    values = torch.linalg.eigvalsh(torch.cov(points.T, correction=0)).flip(0)
    white = torch.cov(whiten_patches(points, 0.5)(points).T, correction=0)
    torch.testing.assert_close(white, torch.diag(values / (values + 0.5)))


def test_whitening_keeps_the_fewest_components_that_hold_the_energy() -> None:
    points = correlated()
    values = torch.linalg.eigvalsh(torch.cov(points.T, correction=0)).flip(0)
    share = (values / (values + 0.5)).cumsum(0) / (values / (values + 0.5)).sum()
    for energy in (0.3, 0.8, 1.0):
        kept = whiten_patches(points, 0.5, energy).matrix.shape[1]
        assert share[kept - 1] >= energy - 1e-6
        assert kept == 1 or share[kept - 2] < energy


def test_products_with_a_dictionary_are_those_of_zca() -> None:
    points = correlated()
    mean, matrix = whiten_patches(points, 0.5)
    vectors = torch.linalg.eigh(torch.cov(points.T, correction=0)).eigenvectors.flip(1)
    vectors = vectors * (vectors * matrix).sum(0).sign()
    zca = matrix @ vectors.T
    torch.testing.assert_close(zca, zca.T)
    directions = torch.randn(4, 6, generator=seeded(2), dtype=torch.float64)
    expected = (points - mean) @ zca @ directions.T
    torch.testing.assert_close((points - mean) @ matrix @ (directions @ vectors).T, expected)


def test_signed_kmeans_finds_axes_whatever_the_signs() -> None:
    axes = torch.linalg.qr(torch.randn(8, 8, generator=seeded(3))).Q[:4]
    members = torch.arange(400) % 4
    signs = torch.randint(2, (400, 1), generator=seeded(4)) * 2.0 - 1
    points = signs * axes[members] * 5 + 0.05 * torch.randn(400, 8, generator=seeded(5))
    directions = signed_kmeans(points, 12, 10, seeded())
    assert (directions @ axes.T).abs().amax(0).min() > 0.99
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(12))


def test_signed_kmeans_raises_the_mean_product_from_round_to_round() -> None:
    points = torch.randn(600, 5, generator=seeded())
    scores = [float((points @ signed_kmeans(points, 6, n, seeded(1)).T).abs().amax(1).mean()) for n in (1, 3, 10)]
    assert scores == sorted(scores)
    assert scores[-1] > scores[0]


def test_more_filters_than_patches_still_give_unit_directions() -> None:
    directions = signed_kmeans(torch.randn(3, 4, generator=seeded()), 20, 4, seeded())
    assert directions.shape == (20, 4)
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(20))


def by_definition(images: Tensor, features: PatchFeatures) -> Tensor:
    """The features with every step written out, in float64."""
    settings = features.settings
    blocks = []
    for size in features.sizes:
        weight, bias, directions = (
            features.get_buffer(f"{name}_{size}").double() for name in ("weight", "bias", "directions")
        )
        raw = 255 * windows(images.double(), size, settings.stride)
        batch, rows, columns = raw.shape[:3]
        s = (normalise_contrast(raw.reshape(-1, len(weight))) @ weight + bias) @ directions
        s = s.view(batch, rows, columns, -1).permute(0, 3, 1, 2)
        for signed in (s, -s):
            answers = F.adaptive_avg_pool2d((signed - settings.threshold).relu(), settings.grid)
            blocks.append(answers.permute(0, 2, 3, 1).flatten(1))
    return torch.cat(blocks, 1).pow(settings.power)


def pooled(features: PatchFeatures, images: torch.Tensor) -> torch.Tensor:
    """Features before they are standardised."""
    standardised: torch.Tensor = features(images)
    return standardised * (features.deviation + DEVIATION_FLOOR) + features.mean


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(3, 9, 11), (1, 12, 8)])
def test_the_module_computes_what_is_defined(shape: tuple[int, int, int], stride: int) -> None:
    images = photographs(shape=shape)
    settings = SMALL.model_copy(update={"stride": stride})
    features = fit_patches(images, settings, seeded())
    expected = by_definition(pixels(images), features)
    # The root of an answer near zero shows the rounding of float32 most.
    torch.testing.assert_close(pooled(features, pixels(images)).double(), expected, atol=1e-3, rtol=1e-3)
    spread = expected.std(0, correction=0) + DEVIATION_FLOOR
    standard = (expected - expected.mean(0)) / spread
    torch.testing.assert_close(features(pixels(images)).double(), standard, atol=0.05, rtol=0.01)


def test_a_folded_whitening_equals_normalising_and_whitening() -> None:
    raw = draw_patches(photographs(), 3, 200, seeded()).double()
    patches = normalise_contrast(raw)
    whitening = whiten_patches(patches, 0.3, 0.9)
    weight, bias = fold(whitening)
    deviation = (raw.var(1, correction=0, keepdim=True) + 10).sqrt()
    torch.testing.assert_close((raw / deviation) @ weight + bias, whitening(patches))


def test_filters_beyond_one_block_and_batches_beyond_one_block_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = photographs(7)
    features = fit_patches(images, SMALL, seeded())
    expected = features(pixels(images))
    monkeypatch.setattr("adagauss.backbones.patches.FILTERS", 2)
    monkeypatch.setattr("adagauss.backbones.patches.NUMBERS", 300)
    torch.testing.assert_close(features(pixels(images)), expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(torch.cat([features(one) for one in pixels(images).split(1)]), expected)  # type: ignore[no-untyped-call]


def test_one_seed_gives_the_same_bits_and_another_does_not() -> None:
    first, again, other = (fit_patches(photographs(), SMALL, seeded(seed)).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["directions_3"], other["directions_3"])


def test_features_survive_a_trip_through_their_state() -> None:
    images = photographs()
    features = fit_patches(images, SMALL, seeded())
    loaded = PatchFeatures(SMALL, images.shape)
    loaded.load_state_dict(features.state_dict())
    assert torch.equal(loaded(pixels(images)), features(pixels(images)))


def test_first_task_is_standardised_but_for_features_that_hardly_move() -> None:
    images = photographs(40)
    values = fit_patches(images, SMALL, seeded())(pixels(images))
    torch.testing.assert_close(values.mean(0), torch.zeros(values.shape[1]), atol=1e-3, rtol=0)
    assert values.std(0, correction=0).max() <= 1.001
    assert values.std(0, correction=0).median() > 0.9


def test_an_exported_program_takes_batches_of_any_size() -> None:
    images = photographs(6)
    features = fit_patches(images, SMALL, seeded())
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(features, (pixels(images)[:2],), dynamic_shapes=({0: batch},)).module()
    for count in (1, 6):
        some = pixels(images)[:count]
        torch.testing.assert_close(program(some), features(some), atol=1e-4, rtol=1e-4)


def test_two_images_are_enough() -> None:
    images = photographs(2)
    features = fit_patches(images, SMALL, seeded())
    assert features(pixels(images)).isfinite().all()
    assert features.width == 2 * 10 * 4


def test_constant_images_are_refused() -> None:
    with pytest.raises(DataError, match="contrast"):
        fit_patches(ArrayImages(torch.full((4, 3, 9, 9), 80, dtype=torch.uint8)), SMALL, seeded())


@pytest.mark.parametrize(
    ("changes", "shape", "words"),
    [
        ({"patch_sizes": (10,)}, (3, 9, 12), "too few patches of 10×10"),
        ({"grid": 5}, (3, 6, 6), "grid of 5×5"),
        ({"filters": 1}, (3, 9, 9), "divided between 2"),
    ],
)
def test_impossible_settings_are_rejected_with_a_message(
    changes: dict[str, object], shape: tuple[int, int, int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        PatchFeatures(PatchSettings.of({**SMALL.model_dump(), **changes}), shape)


def test_images_of_another_size_are_refused() -> None:
    features = PatchFeatures(SMALL, (3, 9, 9))
    with pytest.raises(DataError, match="resize"):
        features(torch.zeros(1, 3, 10, 9))


@pytest.mark.parametrize(
    ("side", "scales", "sizes"),
    [(32, 1, (6,)), (32, 3, (4, 6, 8)), (32, 2, (6, 8)), (8, 1, (3,)), (8, 3, (2, 3, 5)), (3, 3, (2, 3))],
)
def test_patch_sizes_lie_around_the_usual_one_and_fit_the_images(
    side: int, scales: int, sizes: tuple[int, ...]
) -> None:
    settings = PatchSettings(filters=8, scales=scales, grid=1 if side < 8 else 2)
    assert settings.sizes((3, side, side)) == sizes
    assert PatchFeatures(settings, (3, side, side)).width == 8 * 2 * settings.grid**2


def test_a_dictionary_from_photographs_does_not_depend_on_the_images_of_the_task() -> None:
    everywhere = SMALL.with_changes(dictionary_from="photographs")
    one, other = (fit_patches(photographs(seed=seed), everywhere, seeded()).state_dict() for seed in (0, 1))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    one, other = (fit_patches(photographs(seed=seed), SMALL, seeded()).state_dict() for seed in (0, 1))
    assert not torch.equal(one["directions_3"], other["directions_3"])


@pytest.mark.parametrize("shape", [(3, 8, 10), (1, 5, 4), (3, 300, 500), (1, 500, 60), (6, 9, 8)])
def test_crops_of_photographs_have_the_shape_of_the_images_and_something_on_them(shape: tuple[int, int, int]) -> None:
    crops = photograph_crops(shape, seeded(), count=12)
    assert (len(crops), crops.shape) == (12, shape)
    assert (crops.pixels.float().flatten(1).std(1) > 1).float().mean() > 0.5


def test_crops_in_other_channels_than_colours_show_something_else_in_each() -> None:
    channels = photograph_crops((6, 16, 16), seeded(), count=50).pixels.float().movedim(1, 0).flatten(1)
    assert float(torch.corrcoef(channels).tril(-1).amax()) < 0.9999
    assert int(torch.linalg.matrix_rank(torch.cov(channels))) == 6


def test_photographs_that_are_not_installed_are_named_with_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagauss.backbones.patches.NAMES", ("nowhere.jpg",))
    cropped.cache_clear()
    with pytest.raises(DataError, match=r"nowhere\.jpg.*dictionary_from=first_task"):
        cropped()
