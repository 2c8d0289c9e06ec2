"""The residual network on a dictionary of patches, and frozen layers that run once for the old and the new network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.backbones import Extractor
from adagauss.backbones.patch_resnet import PatchResNet, PatchResNetSettings
from adagauss.backbones.patches import CONTRAST_FLOOR, DEVIATION_FLOOR
from adagauss.core.learn import Learner
from adagauss.core.task import CurrentTask
from adagauss.data.images import ArrayImages
from adagauss.errors import ConfigError
from tests.contracts.toy import learner_of, quick_method, toy_learner, toy_tasks

SMALL = {"backbone.name": "patch_resnet", "backbone.options.widths": (8, 12), "backbone.options.patches": 500}


def prepared(size: int = 14) -> tuple[PatchResNet, Tensor]:
    """A network prepared on random images, and the images."""
    torch.manual_seed(0)
    network = PatchResNet(PatchResNetSettings(filters=5, patch_size=4, widths=(6, 8), patches=2000), (3, size, size))
    pixels = torch.randint(256, (40, 3, size, size), dtype=torch.uint8)
    network.prepare(ArrayImages(pixels), torch.Generator().manual_seed(0))
    return network.eval(), pixels


def test_maps_are_means_of_thresholded_products_with_normalised_patches() -> None:
    network, pixels = prepared()
    patches = F.unfold(pixels.double(), 4).mT  # (B, 11², 48)
    deviation = (patches.var(2, correction=0, keepdim=True) + CONTRAST_FLOOR).sqrt()
    products = (patches / deviation) @ network.filters.double().flatten(1).T + network.bias.flatten().double()
    cells = products.mT.reshape(-1, 5, 11, 11)[..., :9, :9].reshape(-1, 5, 3, 3, 3, 3)
    both = torch.cat([(cells - 0.25).clamp_min(0), (-cells - 0.25).clamp_min(0)], 1)
    maps = both.mean((3, 5)).sqrt()
    expected = (maps - network.centre) / (network.deviation + DEVIATION_FLOOR)
    torch.testing.assert_close(network.frozen(pixels / 255).double(), expected, atol=1e-4, rtol=1e-4)


def test_maps_of_the_first_task_are_standardised_and_contrast_does_not_change_products() -> None:
    network, pixels = prepared()
    maps = network.frozen(pixels / 255)
    torch.testing.assert_close(maps.mean((0, 2, 3)), torch.zeros(10), atol=1e-4, rtol=0)
    torch.testing.assert_close(maps.std((0, 2, 3), correction=0), torch.ones(10), atol=0.02, rtol=0)
    torch.testing.assert_close(network.frozen(pixels / 512 + 0.1), maps, atol=0.02, rtol=0.02)


def test_the_dictionary_is_never_trained() -> None:
    learner = toy_learner("adagauss", None, **SMALL)
    tasks = toy_tasks()
    learner.learn(tasks[0])
    before = {name: value.clone() for name, value in learner.network.extractor.trunk.state_dict().items()}
    learner.learn(tasks[1])
    after = learner.network.extractor.trunk.state_dict()
    fixed = {name for name in before if not name.startswith("layers.")}
    assert fixed == {"filters", "bias", "centre", "deviation"}
    assert all(torch.equal(before[name], after[name]) for name in fixed)
    assert not torch.equal(before["layers.0.0.weight"], after["layers.0.0.weight"])


def test_the_dictionary_runs_once_per_batch_for_both_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = toy_learner("adagauss", None, **SMALL)
    tasks = toy_tasks()
    learner.learn(tasks[0])
    entered: list[int] = []
    learned: list[int] = []
    entry, trained = PatchResNet.frozen, Extractor.learned

    def count_entry(self: PatchResNet, images: Tensor) -> Tensor:
        entered.append(len(images))
        return entry(self, images)

    def count_learned(self: Extractor, maps: Tensor) -> Tensor:
        learned.append(len(maps))
        return trained(self, maps)

    monkeypatch.setattr(PatchResNet, "frozen", count_entry)
    monkeypatch.setattr(Extractor, "learned", count_learned)
    method, network = learner.method, learner.network
    now = CurrentTask(1, tasks[2], network, network.frozen_copy(), method.augmentation, learner.runtime)
    method.representation.fit(now, learner.memory)
    assert entered
    assert len(learned) == 2 * len(entered)


@pytest.mark.parametrize("share", ["all", "none", "last:1", "last:3"])
@pytest.mark.parametrize("name", ["resnet_thin", "patch_resnet"])
def test_frozen_and_learned_layers_together_are_the_network(name: str, share: str) -> None:
    settings = {**(SMALL if name == "patch_resnet" else {}), "backbone.name": name, "backbone.train_blocks": share}
    network = toy_learner("adagauss", None, **settings).network.extractor.eval()
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    maps = network.frozen(images)
    assert torch.equal(network.learned(maps), network(images))
    assert torch.equal(maps, (images - network.mean) / network.std) is (name == "resnet_thin" and share != "none")


def test_a_saved_learner_goes_on_as_if_it_had_not_been_saved(tmp_path: Path) -> None:
    learner = learner_of(quick_method("adagauss", None, **SMALL))
    tasks = toy_tasks()
    learner.learn(tasks[0])
    learner.save(tmp_path / "one.safetensors", {})
    loaded = Learner.load(tmp_path / "one.safetensors")
    for one in (learner, loaded):
        one.learn(tasks[1])
    images = tasks[0].images
    assert torch.equal(learner.scores(learner.features(images)), loaded.scores(loaded.features(images)))


def test_images_smaller_than_a_cell_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"7×7 pixels are too small.*backbone\.options\.patch_size"):
        PatchResNet(PatchResNetSettings(), (3, 7, 7))


def test_maps_are_computed_in_float32_while_training_uses_bfloat16() -> None:
    network, pixels = prepared()
    with torch.autocast("cpu", torch.bfloat16):
        found = network.frozen(pixels / 255)
    assert found.dtype == torch.float32
    assert torch.equal(found, network.frozen(pixels / 255))


def flipped(monkeypatch: pytest.MonkeyPatch, cached: bool) -> tuple[Learner, int]:
    """A learner of two tasks with mirrored images, and how many images the frozen layers were run on."""
    entered = [0]
    entry = PatchResNet.frozen

    def count(self: PatchResNet, images: Tensor) -> Tensor:
        entered[0] += len(images)
        return entry(self, images)

    plain = {"augmentation.crop_padding": 0, "augmentation.policy": "none", "augmentation.flip": True}
    augmented = {"representation.label_augmentation.kind": "none", "drift.views": 2}
    learner = toy_learner("adagauss", None, **SMALL, **plain, **augmented)
    with monkeypatch.context() as patch:
        patch.setattr(PatchResNet, "frozen", count)
        patch.setattr("adagauss.core.task.CACHED_BYTES", 2**31 if cached else 0)
        for task in toy_tasks()[:2]:
            learner.learn(task)
    return learner, entered[0]


def test_maps_of_mirrored_images_are_computed_once_for_a_task_if_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    (cached, few), (plain, many) = flipped(monkeypatch, True), flipped(monkeypatch, False)
    assert few < many
    expected = plain.state.state_dict()
    for name, value in cached.state.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)


def test_maps_are_moved_by_whole_cells_in_training() -> None:
    torch.manual_seed(0)
    maps = torch.rand(2, 3, 4, 4)
    still, moving = (
        PatchResNet(PatchResNetSettings(filters=5, patch_size=4, shift=shift), (3, 14, 14)) for shift in (0, 1)
    )
    assert still.augmented(maps, torch.Generator()) is maps
    padded = F.pad(maps, (1, 1, 1, 1))
    expected = [padded[:, :, row : row + 4, column : column + 4] for row in range(3) for column in range(3)]
    generator = torch.Generator().manual_seed(0)
    found = [moving.augmented(maps, generator) for _ in range(100)]
    places = [[place for place, one in enumerate(expected) if torch.equal(one, moved)] for moved in found]
    assert {place for (place,) in places} == set(range(9))


def test_features_of_a_frozen_trunk_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: PatchResNet, maps: Tensor, generator: torch.Generator) -> Tensor:
        raise AssertionError(f"features of shape {tuple(maps.shape)} were moved")

    monkeypatch.setattr(PatchResNet, "augmented", fail)
    toy_learner("adagauss", None, **SMALL, **{"backbone.train_blocks": "none"}).learn(toy_tasks()[0])
