"""The adapter and the affine map on features that a known map has moved."""

from __future__ import annotations

import itertools
from typing import Any, Literal, cast

import pytest
import torch
from torch import Tensor, nn

from adagauss.analysis.measure import distances
from adagauss.backbones import Backbone, BackboneConfig, Extractor, IncrementalHead, Network
from adagauss.core.gaussians import ClassGaussians, CovarianceKind
from adagauss.core.linalg import Affine, sample_covariance
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.parts.drift import Adapter, AffineMap, Drift, NoDrift, view_batches
from adagauss.utils.runtime import Runtime, RuntimeConfig

SIZE, ROWS = 4, 400


def draw(rows: int, columns: int = SIZE, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


OLD = draw(ROWS, seed=1)
TRUE = Affine((torch.eye(SIZE) + 0.4 * draw(SIZE, seed=2)).double(), draw(1, seed=3)[0].double())
NEW = TRUE(OLD).float()


def memory(kind: CovarianceKind = "full") -> ClassGaussians:
    """Two classes of the old space, within the reach of the current task's features."""
    mix = 0.5 * torch.eye(SIZE) + 0.1 * draw(SIZE, seed=4)
    features = torch.cat([draw(100, seed=5) @ mix + 0.5, draw(100, seed=6) @ mix - 0.5])
    return ClassGaussians.from_features(features, ["a"] * 100 + ["b"] * 100, kind)


def task_of(new: Tensor = NEW, views: tuple[str | int, ...] = (0,)) -> CurrentTask:
    """A second task whose features are known already."""
    data = LabelledImages(ArrayImages(torch.zeros(ROWS, 1, 2, 2)), torch.zeros(ROWS, dtype=torch.long), ("new",))
    network = cast(Network, nn.Identity())
    now = CurrentTask(1, data, network, network, Augmentation.none(), Runtime(RuntimeConfig(device="cpu")))
    for view in views:
        now._features[(True, view)], now._features[(False, view)] = OLD, new
    return now


RECIPE = Recipe(epochs=40, batch_size=100, learning_rate=0.2, clip_norm=1.0, weight_decay=0.0)


def adapter(network: Literal["mlp", "linear"], **settings: Any) -> Adapter:
    defaults: dict[str, Any] = {"views": 1, "samples": 4000, "recipe": RECIPE, "anti_collapse": 0.0, "min_steps": 0}
    return Adapter(network=network, **{**defaults, **settings})


def affine(**settings: Any) -> AffineMap:
    return AffineMap(**{"views": 1, "ridge": 1e-10, **settings})


def of_kind(network: Literal["affine", "linear"], recipe: Recipe = RECIPE, **settings: Any) -> Drift:
    """The map in closed form, or one that is trained."""
    return affine(**settings) if network == "affine" else adapter(network, recipe=recipe, **settings)


@pytest.mark.parametrize("kind", ["full", "none"])
def test_affine_recovers_an_affine_move_exactly(kind: CovarianceKind) -> None:
    moved = affine().move(memory(kind), task_of())
    exact = memory(kind).transport_affine(TRUE)
    torch.testing.assert_close(moved.means, exact.means, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moved.packed, exact.packed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network", ["mlp", "linear"])
def test_trained_adapters_follow_an_affine_move(network: Literal["mlp", "linear"]) -> None:
    moved = adapter(network).move(memory(), task_of())
    exact, still = memory().transport_affine(TRUE), memory()
    error, before = distances(moved, exact), distances(still, exact)
    assert bool((error[:, 0] < 0.1 * before[:, 0]).all())
    assert bool((error[:, 1] < 0.25 * before[:, 1]).all())


@pytest.mark.parametrize("network", ["affine", "linear"])
@pytest.mark.parametrize(("mean", "covariance"), list(itertools.product([False, True], repeat=2)))
def test_each_switch_moves_its_own_statistic(
    network: Literal["affine", "linear"], mean: bool, covariance: bool
) -> None:
    before = memory()
    recipe = Recipe(epochs=2)
    part = of_kind(network, recipe, adapt_mean=mean, adapt_covariance=covariance)
    moved = part.move(before, task_of())
    assert torch.equal(moved.means, before.means) != mean
    assert torch.equal(moved.packed, before.packed) != covariance
    both = of_kind(network, recipe).move(before, task_of())
    assert torch.equal(moved.means, both.means if mean else before.means)
    assert torch.equal(moved.packed, both.packed if covariance else before.packed)


@pytest.mark.parametrize("network", ["affine", "linear"])
def test_move_leaves_the_given_memory_alone(network: Literal["affine", "linear"]) -> None:
    before = memory()
    of_kind(network).move(before, task_of())
    assert torch.equal(before.means, memory().means)
    assert torch.equal(before.packed, memory().packed)


@pytest.mark.parametrize("amount", [0.5, 1.0])
def test_residual_covariance_is_added(amount: float) -> None:
    now = task_of(NEW + 0.3 * draw(ROWS, seed=8))
    without = affine().move(memory(), now)
    moved = affine(residual_covariance=amount).move(memory(), now)
    added = moved.covariances - without.covariances
    torch.testing.assert_close(added[0], added[1])
    design = torch.cat([OLD, torch.ones(ROWS, 1)], dim=1).double()
    target = now._features[(False, 0)].double()
    residual = target - design @ torch.linalg.lstsq(design, target).solution
    torch.testing.assert_close(added[0], amount * sample_covariance(residual), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(moved.means, without.means)


@pytest.mark.parametrize("network", ["affine", "linear"])
def test_diagonal_memory_keeps_the_diagonal_of_the_moved_covariance(network: Literal["affine", "linear"]) -> None:
    before = memory("diagonal")
    moved = of_kind(network).move(before, task_of())
    exact = TRUE.weight.T @ before.covariances @ TRUE.weight
    assert moved.covariance == "diagonal"
    assert moved.packed.shape == before.packed.shape
    torch.testing.assert_close(moved.packed, exact.diagonal(dim1=1, dim2=2), rtol=0.15, atol=0.02)


def test_the_penalty_of_the_affine_map_is_used() -> None:
    moved = affine(ridge=1e6).move(memory(), task_of())
    torch.testing.assert_close(moved.means, NEW.mean(0).double().expand(2, -1), rtol=1e-3, atol=1e-3)


def test_anti_collapse_keeps_directions_that_the_new_features_lost() -> None:
    flat = NEW.clone()
    flat[:, -1] = 0
    without = adapter("linear").move(memory(), task_of(flat))
    kept = adapter("linear", anti_collapse=1.0).move(memory(), task_of(flat))
    assert bool((without.covariances[:, -1, -1] < 1e-3).all())
    assert bool((kept.covariances[:, -1, -1] > 1e-2).all())


def test_no_views_means_the_plain_images() -> None:
    moved = affine(views=0).move(memory(), task_of(views=("test",)))
    torch.testing.assert_close(moved.means, memory().transport_affine(TRUE).means, rtol=1e-5, atol=1e-5)


def test_no_drift_keeps_the_memory() -> None:
    before = memory()
    assert NoDrift().move(before, task_of()) is before


class CountingBackbone(Backbone):
    def __init__(self) -> None:
        super().__init__(16)
        self.images = 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        return images.flatten(1)


@pytest.mark.parametrize("views", [0, 1, 3])
@pytest.mark.parametrize("epochs", [1, 9])
def test_extractors_run_once_a_view_however_many_epochs(views: int, epochs: int) -> None:
    pixels = torch.randint(0, 256, (30, 1, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    data = LabelledImages(ArrayImages(pixels), torch.zeros(30, dtype=torch.long), ("new",))
    trunks = [CountingBackbone(), CountingBackbone()]
    config = BackboneConfig(features=SIZE)
    old, new = (Network(Extractor(trunk, config, (0.5,), (0.5,)), IncrementalHead(SIZE)) for trunk in trunks)
    now = CurrentTask(1, data, new, old, Augmentation(crop_padding=1), Runtime(RuntimeConfig(device="cpu")))
    adapter("linear", views=views, samples=10, recipe=Recipe(epochs=epochs, batch_size=8)).move(memory(), now)
    assert [trunk.images for trunk in trunks] == [30 * max(1, views)] * 2


@pytest.mark.parametrize(("views", "expected"), [(1, [0, 0, 0, 0]), (3, [0, 1, 2, 0]), (4, [0, 1, 2, 3])])
def test_epochs_take_views_in_turn_so_that_enough_views_are_new_in_every_epoch(views: int, expected: list[int]) -> None:
    number = torch.arange(views).repeat_interleave(10).float().unsqueeze(1)
    batches = view_batches(number, -number, views, Recipe(batch_size=4, drop_last=False))
    for epoch, view in enumerate(expected):
        old, new = map(torch.cat, zip(*batches.epoch(epoch, torch.Generator().manual_seed(epoch)), strict=True))
        assert old.flatten().tolist() == [view] * 10
        assert torch.equal(new, -old)


def test_views_show_the_same_pictures_to_both_networks_and_differ_among_themselves() -> None:
    pixels = torch.randint(0, 256, (30, 1, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    data = LabelledImages(ArrayImages(pixels), torch.zeros(30, dtype=torch.long), ("new",))
    config = BackboneConfig(features=None)
    network = Network(Extractor(CountingBackbone(), config, (0.5,), (0.5,)), IncrementalHead(16))
    now = CurrentTask(1, data, network, network, Augmentation(crop_padding=1), Runtime(RuntimeConfig(device="cpu")))
    old, new = now.pairs(2)
    assert torch.equal(old, new)
    assert not torch.equal(new[:30], new[30:])
    assert len(old) == 60
