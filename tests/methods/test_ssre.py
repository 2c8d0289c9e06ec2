"""SSRE: folding changes nothing, only parallel convolutions learn, and nearness to old classes weighs the images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.backbones import BackboneConfig, Extractor, IncrementalHead, Network, build_extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.task import CurrentTask
from adagauss.data.augment import Augmentation
from adagauss.data.dataset import load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import ConfigError
from adagauss.methods import dataset_layers, make_method
from adagauss.methods.ssre import (
    ParallelConvolutions,
    SelectiveCrossEntropy,
    SelectiveDistillation,
    adaptable,
    fold_norms,
    similarity,
)
from adagauss.parts.representation import Step
from adagauss.utils.runtime import Runtime, RuntimeConfig

RUNTIME = Runtime(RuntimeConfig(device="cpu"))
BACKBONES = ["convnet", "resnet_thin"]


def trained_like(backbone: str, batch_norm: Any = "frozen") -> Extractor:
    """An extractor whose batch norms have statistics, scales and shifts of their own."""
    torch.manual_seed(0)
    extractor = build_extractor(
        BackboneConfig(name=backbone, features=None, batch_norm=batch_norm), (1, 8, 8), (0.5,), (0.3,)
    )
    for module in extractor.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.2, 2.0)
    return extractor.eval()


def task_with(extractor: Extractor, index: int = 1) -> CurrentTask:
    network = Network(extractor, IncrementalHead(extractor.size))
    if index:
        network.head.grow(2)
        extractor.end_first_task()
    previous = network.frozen_copy() if index else None
    network.head.grow(2)
    data = LabelledImages(ArrayImages(torch.zeros(4, 1, 8, 8)), torch.arange(4) % 2, ("x", "y"))
    return CurrentTask(index, data, network, previous, Augmentation.none(), RUNTIME)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_folding_batch_norm_changes_no_feature(backbone: str) -> None:
    extractor, images = trained_like(backbone), torch.rand(6, 1, 8, 8)
    before, names = extractor(images), list(extractor.state_dict())
    fold_norms(extractor)
    torch.testing.assert_close(extractor(images), before, rtol=1e-5, atol=1e-5)
    assert list(extractor.state_dict()) == names
    norms = [module for module in extractor.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(bool((norm.weight == 1).all()) and not norm.running_mean.any() for norm in norms)  # type: ignore[union-attr]


@pytest.mark.parametrize("backbone", BACKBONES)
def test_folded_network_is_the_network_with_parallel_convolutions(backbone: str) -> None:
    extractor, images = trained_like(backbone), torch.rand(6, 1, 8, 8)
    plain = extractor(images).detach()
    now = task_with(extractor)
    adapters = ParallelConvolutions().start(now)
    assert len(list(adapters.parameters())) == len(adaptable(extractor))
    torch.testing.assert_close(extractor(images), plain)  # they begin at zero
    for parameter in adapters.parameters():
        nn.init.normal_(parameter, std=0.1)
    unfolded, size = extractor(images).detach(), sum(value.numel() for value in extractor.state_dict().values())
    ParallelConvolutions().settle(now, adapters)
    torch.testing.assert_close(extractor(images), unfolded, rtol=1e-5, atol=1e-5)
    assert float((unfolded - plain).norm() / plain.norm()) > 0.01
    assert sum(value.numel() for value in extractor.state_dict().values()) == size
    assert not any(module._forward_hooks for module in extractor.modules())


def test_the_stem_and_the_shortcuts_of_a_residual_network_get_no_parallel_convolution() -> None:
    extractor = trained_like("resnet_thin")
    names = {id(module): name for name, module in extractor.named_modules()}
    chosen = [names[id(module)] for module in adaptable(extractor)]
    assert chosen == [f"trunk.layer{stage}.0.conv{number}" for stage in (1, 2, 3) for number in (1, 2)]


@pytest.mark.parametrize("backbone", BACKBONES)
def test_only_parallel_convolutions_and_head_receive_gradients(backbone: str) -> None:
    extractor = trained_like(backbone)
    now = task_with(extractor)
    adapters = ParallelConvolutions().start(now)
    assert len(list(adapters.parameters())) == len(adaptable(extractor))
    now.network.train()
    before = {name: value.clone() for name, value in extractor.state_dict().items()}
    loss = F.cross_entropy(now.network.head.seen(extractor(torch.rand(6, 1, 8, 8))), torch.arange(6) % 4)
    torch.autograd.backward(loss)
    assert all(parameter.grad is None for parameter in extractor.parameters())
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in adapters.parameters())
    assert all(parameter.grad is not None for parameter in now.network.head.parameters())
    assert all(torch.equal(value, before[name]) for name, value in extractor.state_dict().items())


def test_a_later_task_moves_only_the_centres_of_convolutions() -> None:
    digits = load_dataset("digits")
    short = {f"representation.{when}.epochs": 1 for when in ("first", "later")}
    method = make_method("ssre", None, {**short, "representation.later.learning_rate": 0.01}, dataset_layers("digits"))
    learner = Learner(method, (1, 8, 8), digits.mean, digits.std, RUNTIME)
    learner.learn(digits.train.of_classes([0, 1]))
    before = {name: value.clone() for name, value in learner.network.extractor.state_dict().items()}
    learner.learn(digits.train.of_classes([2, 3]))
    for name, value in learner.network.extractor.state_dict().items():
        moved = value != before[name]
        if value.ndim == 4:
            assert bool(moved[:, :, 1, 1].any())
            moved[:, :, 1, 1] = False
        assert not moved.any(), name


def test_moving_batch_norms_and_networks_without_convolutions_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_norm=frozen"):
        ParallelConvolutions().start(task_with(trained_like("convnet", "train"), 0))
    assert not list(ParallelConvolutions().start(task_with(trained_like("convnet", "none"), 0)).parameters())
    extractor = trained_like("convnet")
    extractor.trunk = nn.Linear(3, 3)  # type: ignore[assignment]
    extractor.trunk.blocks = lambda: []  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="3x3"):
        ParallelConvolutions().start(task_with(extractor, 0))


def step_with(features: Tensor, means: Tensor) -> Step:
    now = task_with(trained_like("convnet"))
    memory = ClassGaussians.from_features(means, [f"old {row}" for row in range(len(means))], "none")
    images = torch.rand(len(features), 1, 8, 8)
    return Step(images, torch.arange(len(features)) % 2, now, memory, torch.Generator(), lambda _: features)


def test_similarity_is_the_largest_cosine_and_never_negative() -> None:
    features = torch.zeros(3, 64)
    features[0, :2] = torch.tensor([3.0, 4.0])
    features[1, 0], features[2, 0] = 2.0, -1.0
    means = torch.zeros(2, 64)
    means[0, 0], means[1, 0], means[1, 1] = 5.0, 1.0, 1.0
    expected = torch.tensor([7 / (5 * 2**0.5), 1.0, 0.0])
    torch.testing.assert_close(similarity(step_with(features, means)), expected)


def test_selective_losses_are_the_ones_computed_image_by_image() -> None:
    torch.manual_seed(2)
    features, means = torch.rand(5, 64, requires_grad=True), torch.rand(3, 64)
    step = step_with(features, means)
    head = step.now.network.head
    classify = distil = 0.0
    for row in range(5):
        s = max(float(F.cosine_similarity(features[row].detach(), mean, dim=0)) for mean in means)
        logits = head.seen(features[row : row + 1]) / 0.1
        classify += (1 - s) * float(F.cross_entropy(logits, step.targets[row : row + 1] + 2)) / 5
        distil += s * float((features[row] - step.previous_features[row]).norm())
    loss = SelectiveCrossEntropy(over="seen", temperature=0.1).loss(step)
    assert float(loss.detach()) == pytest.approx(classify, rel=1e-4)
    distillation = SelectiveDistillation().loss(step)
    assert distillation is not None
    assert float(distillation.detach()) == pytest.approx(distil, rel=1e-4)


def test_distillation_has_a_finite_gradient_where_nothing_has_moved() -> None:
    step = step_with(torch.zeros(4, 64), torch.rand(2, 64))
    features = step.previous_features.clone().requires_grad_()
    step.features = features
    loss = SelectiveDistillation().loss(step)
    assert loss is not None
    assert float(loss.detach()) == 0
    assert not torch.autograd.grad(loss, features)[0].any()


def test_first_task_is_plain_cross_entropy() -> None:
    step = step_with(torch.rand(4, 64), torch.rand(2, 64))
    step.memory = ClassGaussians(64, "none")
    logits = step.now.network.head.seen(step.features)
    expected = F.cross_entropy(logits / 0.1, step.targets + 2)
    torch.testing.assert_close(SelectiveCrossEntropy(over="seen", temperature=0.1).loss(step), expected)
    assert SelectiveDistillation().loss(step) is None
