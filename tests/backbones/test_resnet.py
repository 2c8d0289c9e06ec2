"""Own networks: names and shapes of parameters, sizes of features, batch-norm policies, what learns, the head."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from adagauss.backbones import BackboneConfig, Extractor, IncrementalHead, Network, build_extractor
from adagauss.backbones.registry import BackboneSpec, Stem, backbone_info, backbones
from adagauss.core.config import Config
from adagauss.errors import ConfigError

Shape = tuple[int, ...]


def torchvision_resnet18() -> dict[str, Shape]:
    """Names and shapes in torchvision's resnet18 state dict, without its classifier, spelled out."""

    def norm(name: str, width: int) -> dict[str, Shape]:
        values: dict[str, Shape] = {
            f"{name}.{key}": (width,) for key in ("weight", "bias", "running_mean", "running_var")
        }
        return {**values, f"{name}.num_batches_tracked": ()}

    expected: dict[str, Shape] = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    stages = {"layer1": (64, 64), "layer2": (64, 128), "layer3": (128, 256), "layer4": (256, 512)}
    for stage, (inputs, width) in stages.items():
        expected[f"{stage}.0.conv1.weight"] = (width, inputs, 3, 3)
        expected[f"{stage}.1.conv1.weight"] = (width, width, 3, 3)
        for block in ("0", "1"):
            expected[f"{stage}.{block}.conv2.weight"] = (width, width, 3, 3)
            expected |= {**norm(f"{stage}.{block}.bn1", width), **norm(f"{stage}.{block}.bn2", width)}
        if inputs != width:
            expected[f"{stage}.0.downsample.0.weight"] = (width, inputs, 1, 1)
            expected |= norm(f"{stage}.0.downsample.1", width)
    return expected


def extractor(size: int = 8, channels: int = 3, name: str = "resnet_thin", **settings: object) -> Extractor:
    torch.manual_seed(0)
    config = BackboneConfig.of({"name": name, "features": 16, **settings}, "backbone.")
    return build_extractor(config, (channels, size, size), (0.5,) * channels, (0.25,) * channels)


def images(count: int = 4, size: int = 8, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(1))


def statistics(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items() if "running" in name}


def moved(before: dict[str, Tensor], module: nn.Module) -> set[str]:
    after = module.state_dict()
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def test_resnet18_has_torchvisions_names_and_shapes() -> None:
    trunk = backbone_info("resnet18").build(BackboneSpec(3, 224))
    expected = torchvision_resnet18()
    assert len(expected) == 120
    assert {name: tuple(value.shape) for name, value in trunk.state_dict().items()} == expected
    assert sum(parameter.numel() for parameter in trunk.parameters()) == 11_689_512 - 513_000  # all but the classifier


@pytest.mark.parametrize(("size", "kernel", "side"), [(8, 3, 1), (32, 3, 4), (64, 3, 8), (224, 7, 7)])
def test_the_stem_follows_the_image_size(size: int, kernel: int, side: int) -> None:
    trunk = backbone_info("resnet18").build(BackboneSpec(3, size)).eval()
    assert trunk.get_parameter("conv1.weight").shape[-1] == kernel
    maps: list[Tensor] = []
    trunk.blocks()[-1].register_forward_hook(lambda _, __, output: maps.append(output))
    with torch.no_grad():
        assert trunk(images(1, size)).shape == (1, 512)
    assert maps[0].shape[-2:] == (side, side)


@pytest.mark.parametrize(("stem", "kernel"), [("auto", 3), ("small", 3), ("large", 7)])
def test_the_stem_can_be_chosen(stem: str, kernel: int) -> None:
    network = extractor(32, stem=stem)
    assert network.trunk.get_parameter("conv1.weight").shape[-1] == kernel
    assert network(images(2, 32)).shape == (2, 16)


def test_a_stem_where_there_is_no_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="only one stem"):
        extractor(name="convnet", stem="large")


def test_resnet32_is_32_layers_deep() -> None:
    trunk = backbone_info("resnet32").build(BackboneSpec(3, 32))
    convolutions = [m for m in trunk.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 31  # and the classifier
    assert len(trunk.blocks()) == 15
    assert trunk.eval()(images(1, 32)).shape == (1, 64)


def test_convolutions_and_bottleneck_are_drawn_by_he_s_rule() -> None:
    network = extractor(name="resnet32")
    assert isinstance(network.bottleneck, nn.Linear)
    assert not network.bottleneck.bias.any()
    for layer in (network.trunk.get_submodule("layer3.4.conv2"), network.bottleneck):
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        weight = layer.weight.detach()
        outputs = len(weight) * weight[0, 0].numel()
        assert float(weight.std()) == pytest.approx((2 / outputs) ** 0.5, rel=0.1)


def test_resnet_thin_is_what_its_summary_says() -> None:
    trunk = backbone_info("resnet_thin").build(BackboneSpec(3, 32))
    widths = [block.get_parameter("conv1.weight").shape[0] for block in trunk.blocks()]
    assert "/".join(map(str, widths)) in backbones()["resnet_thin"].summary


@pytest.mark.parametrize(("stem", "side"), [("small", 32), ("halved", 16), ("large", 8), ("auto", 16)])
def test_the_stem_sets_the_resolution_of_the_first_stage(stem: Stem, side: int) -> None:
    trunk = backbone_info("resnet_thin").build(BackboneSpec(3, 32, stem=stem))
    seen: list[torch.Size] = []
    trunk.blocks()[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    trunk(images(2, 32))
    assert seen == [torch.Size([2, 16, side, side])]


@pytest.mark.parametrize("name", [name for name, info in backbones().items() if not info.carries_weights])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_own_backbone_gives_features_and_gradients(name: str, channels: int) -> None:
    network = extractor(16, channels, name)
    features = network(images(4, 16, channels))
    features.square().sum().backward()
    assert features.shape == (4, 16)
    assert all(parameter.grad is not None for parameter in network.parameters() if parameter.requires_grad)
    blocks = {id(p) for block in network.trunk.blocks() for p in block.parameters()}
    assert blocks <= {id(p) for p in network.trunk.parameters()}


def test_without_a_bottleneck_the_trunks_features_remain() -> None:
    network = extractor(features=None)
    assert network.size == 64
    assert (network.eval()(images()) >= 0).all()


def test_images_are_resized_to_the_input_size() -> None:
    network = extractor(8, input_size=16)
    seen: list[Tensor] = []
    network.trunk.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network(images(2, 8))
    network(images(2, 40))
    network(torch.full((1, 3, 40, 40), 0.75))
    assert [tuple(x.shape[-2:]) for x in seen] == [(16, 16)] * 3
    torch.testing.assert_close(seen[2], torch.ones(1, 3, 16, 16))  # normalised after resizing


@pytest.mark.parametrize(("policy", "first", "later"), [("train", True, True), ("frozen", True, False)])
def test_batch_norm_statistics_move_by_policy(policy: str, first: bool, later: bool) -> None:
    network = extractor(batch_norm=policy).train()
    before = statistics(network)
    network(images())
    assert bool(moved(before, network)) is first
    network.end_first_task()
    before = statistics(network)
    network.train()(images()).sum().backward()
    assert bool(moved(before, network)) is later
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(norm.training is later and norm.weight.requires_grad is later for norm in norms)
    assert all(p.requires_grad for p in network.trunk.get_submodule("conv1").parameters())
    twin = copy.deepcopy(network).train()
    assert all(m.training is later for m in twin.modules() if isinstance(m, nn.BatchNorm2d))


def test_batch_norms_can_be_left_out() -> None:
    network = extractor(batch_norm="none")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert network(images(1)).isfinite().all()


@pytest.mark.parametrize("name", ["resnet_thin", "convnet"])
@pytest.mark.parametrize(("share", "count"), [("none", 0), ("last:1", 1), ("last:2", 2)])
def test_only_the_last_blocks_learn(name: str, share: str, count: int) -> None:
    network = extractor(name=name, train_blocks=share, batch_norm="frozen")
    learning = {id(p) for block in network.trunk.blocks()[3 - count :] for p in block.parameters()}
    before = statistics(network)
    network.train()(images()).square().sum().backward()
    for parameter in network.trunk.parameters():
        assert parameter.requires_grad is (parameter.grad is not None) is (id(parameter) in learning)
    assert all(p.grad is not None for p in network.bottleneck.parameters())
    changed = moved(before, network)
    assert bool(changed) is (count > 0)
    fixed = {id(m) for block in network.trunk.blocks()[: 3 - count] for m in block.modules()}
    assert not any(id(network.get_submodule(name.rpartition(".")[0])) in fixed for name in changed)

    network.end_first_task()
    before = statistics(network)
    network.eval().train()(images())
    assert not moved(before, network)
    assert not any(p.requires_grad for p in network.trunk.parameters() if id(p) not in learning)


def test_the_bottleneck_can_be_kept_as_drawn() -> None:
    network = extractor(train_blocks="last:1", train_bottleneck=False)
    network(images()).square().sum().backward()
    assert not any(p.requires_grad for p in network.bottleneck.parameters())
    assert any(p.grad is not None for p in network.trunk.parameters())


@pytest.mark.parametrize("share", ["some", "last:0", "last:", "last:x", "first:1"])
def test_shares_that_mean_nothing_are_refused(share: str) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.train_blocks.*none.*last:"):
        extractor(train_blocks=share)


def test_more_blocks_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match="has 3 blocks"):
        extractor(train_blocks="last:4")


def test_an_unknown_backbone_gets_the_nearest_name_and_the_families() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'resnet18'.*timm:NAME"):
        extractor(name="resnet-18")


def test_the_head_grows_and_keeps_what_it_had() -> None:
    head = IncrementalHead(16)
    features = torch.rand(3, 16, generator=torch.Generator().manual_seed(0))
    head.grow(2, auxiliary=6)
    first = head.seen(features)
    assert head.current(features).shape == (3, 8)
    head.grow(5)
    assert head.sizes == [(2, 6), (5, 0)]
    assert head.classes == 7
    assert torch.equal(head.seen(features)[:, :2], first)
    assert torch.equal(head.seen(features)[:, 2:], head.current(features))
    assert head.seen(features, auxiliary=True).shape == (3, 13)
    head.drop_auxiliary()
    assert head.sizes == [(2, 0), (5, 0)]
    weight, bias = head.class_parameters()
    torch.testing.assert_close(features @ weight.T + bias, head.seen(features))


def test_a_frozen_copy_keeps_its_features_while_the_network_learns() -> None:
    network = Network(extractor(), IncrementalHead(16))
    copied = network.frozen_copy()
    before = copied.extractor(images())
    network.extractor.train()(images()).square().sum().backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)
    assert torch.equal(copied.extractor(images()), before)
    assert not any(p.requires_grad for p in copied.parameters())


def test_the_settings_survive_as_plain_data() -> None:
    config = BackboneConfig(weights="a.pth", stem="large", train_blocks="last:2", train_bottleneck=False, input_size=64)
    assert isinstance(config, Config)
    assert BackboneConfig.of(config.model_dump()) == config
