"""Weight files: what is loaded, what is refused and with which words."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from adagauss.backbones import BackboneConfig, Extractor, build_extractor
from adagauss.backbones.external import read_weights
from adagauss.backbones.registry import BackboneSpec, backbone_info
from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import CheckpointError, ConfigError
from adagauss.methods import make_method
from adagauss.utils.runtime import Runtime, RuntimeConfig


def state_of(name: str = "resnet_thin", size: int = 8, channels: int = 3) -> dict[str, Tensor]:
    """A torchvision-style state dict with recognisable values: trunk and classifier."""
    generator = torch.Generator().manual_seed(7)
    trunk = backbone_info(name).build(BackboneSpec(channels, size))
    state = {
        key: torch.rand(value.shape, generator=generator) if value.is_floating_point() else torch.tensor(5)
        for key, value in trunk.state_dict().items()
    }
    return {**state, "fc.weight": torch.rand(1000, trunk.width), "fc.bias": torch.rand(1000)}


def build(weights: Path | str | None, size: int = 8, channels: int = 3, **settings: object) -> Extractor:
    torch.manual_seed(0)
    name = settings.pop("name", "resnet_thin")
    config = BackboneConfig.of({"name": name, "features": 16, "weights": weights and str(weights), **settings})
    return build_extractor(config, (channels, size, size), (0.5,) * channels, (0.25,) * channels)


@pytest.fixture
def thin(tmp_path: Path) -> Path:
    path = tmp_path / "thin.safetensors"
    save_file(state_of(), path)
    return path


@pytest.mark.parametrize("form", ["safetensors", "pth", "wrapped", "parallel", "half", "without counters"])
def test_a_file_loads_into_the_trunk_and_leaves_the_bottleneck_new(form: str, tmp_path: Path) -> None:
    state = state_of()
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pth")
    if form == "safetensors":
        save_file(state, path)
    elif form == "wrapped":
        torch.save({"state_dict": state, "epoch": 90}, path)
    elif form == "parallel":
        torch.save({f"module.{name}": value for name, value in state.items()}, path)
    elif form == "half":
        torch.save({name: value.half() for name, value in state.items()}, path)
    elif form == "without counters":
        torch.save({name: value for name, value in state.items() if "num_batches" not in name}, path)
    else:
        torch.save(state, path)
    network, fresh = build(path), build(None)
    for name, value in network.trunk.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(value, state[name], atol=1e-3 if form == "half" else 0, rtol=0)
            assert value.dtype == torch.float32
    assert all(
        torch.equal(a, b) for a, b in zip(network.bottleneck.parameters(), fresh.bottleneck.parameters(), strict=True)
    )


def test_torchvisions_resnet18_loads_for_large_images(tmp_path: Path) -> None:
    path = tmp_path / "resnet18.pth"
    state = state_of("resnet18", 224)
    torch.save(state, path)
    network = build(path, 224, name="resnet18")
    assert torch.equal(network.trunk.get_parameter("layer4.1.conv2.weight"), state["layer4.1.conv2.weight"])


@pytest.mark.parametrize(
    ("made_for", "used_for", "remedy"), [(224, 32, {"input_size": 224}), (32, 224, {"stem": "small"})]
)
def test_another_stem_is_named_with_the_remedy(
    made_for: int, used_for: int, remedy: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(state_of(size=made_for), path)
    ((key, value),) = remedy.items()
    with pytest.raises(ConfigError, match=f"needs backbone.{key}={value}") as caught:
        build(path, used_for)
    assert "size mismatch for conv1.weight" in str(caught.value)
    build(path, used_for, **remedy)


def test_a_file_of_large_images_brings_imagenets_normalisation_and_size(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(state_of(size=224), path)
    photos, small, grey = build(path, 128), build(path, 32, stem="large"), build(path, 128, channels=1)
    for network in (photos, small):
        assert network.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
        assert network.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])
    assert grey.mean.flatten().tolist() == pytest.approx([0.449], abs=1e-3)
    assert (photos.input_size, small.input_size) == (None, 224)
    assert build(None, 128).mean.flatten().tolist() == [0.5] * 3, "without a file the dataset's"


def test_names_below_another_name_are_found(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    state = state_of()
    save_file({f"backbone.{name}": value for name, value in state.items() if not name.startswith("fc.")}, path)
    assert torch.equal(build(path).trunk.get_parameter("conv1.weight"), state["conv1.weight"])


def test_a_saved_learner_prepares_images_as_when_it_was_taught(tmp_path: Path) -> None:
    settings = {"backbone.name": "resnet_thin", "backbone.features": 8}
    learner = Learner(make_method("frozen", settings=settings), (3, 8, 8), (0.5,) * 3, (0.25,) * 3)
    learner.network.extractor.restore_input({"mean": [0.1] * 3, "std": [0.2] * 3, "size": 16})
    learner.save(tmp_path / "learner.safetensors")
    loaded = Learner.load(tmp_path / "learner.safetensors").network.extractor
    assert loaded.input_facts() == learner.network.extractor.input_facts()
    assert loaded.input_size == 16


def test_files_are_found_from_another_directory(thin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = BackboneConfig(weights=thin.name)
    assert config.weights == str(thin)


def test_another_architecture_is_refused_with_a_short_list(thin: Path) -> None:
    with pytest.raises(ConfigError, match="does not fit resnet18") as caught:
        build(thin, name="resnet18")
    message = str(caught.value)
    assert 'Missing key(s) in state_dict: "layer1.1.conv1.weight"' in message
    assert len(message) < 1000


def test_parameters_too_many_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({**state_of(), "layer9.0.conv1.weight": torch.rand(2)}, path)
    with pytest.raises(ConfigError, match=r"Unexpected key.*layer9\.0\.conv1\.weight"):
        build(path)


def test_colour_weights_serve_grey_images(thin: Path) -> None:
    colour, grey = build(thin).eval(), build(thin, channels=1).eval()
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(grey.trunk(images), colour.trunk(images.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-4)


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_code_in_a_pickle_is_refused_and_not_run(writer: str, tmp_path: Path) -> None:
    path, mark = tmp_path / "weights.pth", tmp_path / "ran"
    state = {**state_of(), "fc.extra": _Evil(mark)}
    if writer == "torch":
        torch.save(state, path)
    else:
        path.write_bytes(pickle.dumps(state, protocol=2))
    with pytest.raises(CheckpointError, match="weights_only"):
        build(path)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a weight file at all", b"PK\x03\x04 cut off"])
def test_damaged_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        build(tmp_path / name)


def test_a_truncated_file_is_refused(tmp_path: Path, thin: Path) -> None:
    thin.write_bytes(thin.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="safetensors"):
        build(thin)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save([torch.rand(2)], tmp_path / "list.pth")
    with pytest.raises(CheckpointError, match="not a state dict"):
        read_weights(tmp_path / "list.pth")


def test_an_absent_file_is_a_setting_to_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.weights: .* does not exist"):
        build(tmp_path / "none.pth")


def test_imagenet_weights_need_a_backbone_that_carries_them() -> None:
    with pytest.raises(ConfigError, match="comes without weights"):
        build("imagenet")


def test_random_is_the_same_as_nothing_for_own_networks() -> None:
    ours, theirs = build("random").state_dict(), build(None).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_weights_are_loaded_before_batch_norms_are_removed(thin: Path) -> None:
    network = build(thin, batch_norm="none")
    assert torch.equal(network.trunk.get_parameter("conv1.weight"), state_of()["conv1.weight"])


def test_a_saved_learner_needs_the_weight_file_no_more_and_stays_frozen(thin: Path, tmp_path: Path) -> None:
    settings = {
        "backbone.name": "resnet_thin",
        "backbone.features": 4,
        "backbone.weights": str(thin),
        "backbone.train_blocks": "last:1",
        "representation.first.epochs": 1,
        "representation.first.batch_size": 16,
    }
    runtime = Runtime(RuntimeConfig(device="cpu"))
    learner = Learner(make_method("finetune", settings=settings), (3, 8, 8), (0.5,), (0.25,), runtime)
    pixels = torch.randint(0, 256, (32, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    learner.learn(LabelledImages(ArrayImages(pixels), torch.arange(32) % 2, ("a", "b")))

    initial = state_of()
    trunk = learner.network.extractor.trunk
    fixed = {name for name, value in trunk.state_dict().items() if torch.equal(value, initial[name])}
    assert {name for name in trunk.state_dict() if not name.startswith("layer3")} == fixed

    learner.save(tmp_path / "learner.safetensors")
    thin.unlink()
    again = Learner.load(tmp_path / "learner.safetensors", Runtime(RuntimeConfig(device="cpu")))
    images = ArrayImages(pixels)
    assert torch.equal(again.features(images), learner.features(images))
    wanted = {name: p.requires_grad for name, p in learner.network.extractor.named_parameters()}
    assert {name: p.requires_grad for name, p in again.network.extractor.named_parameters()} == wanted
    assert sum(wanted.values()) < len(wanted)
