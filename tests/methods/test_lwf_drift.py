"""SDC, LDC, ADC and AdaGauss' variants."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from adagauss.backbones import BackboneConfig, IncrementalHead, Network, build_extractor
from adagauss.core.config import plain
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import CurrentTask, extract_features
from adagauss.data.augment import Augmentation, to_float
from adagauss.data.dataset import load_dataset
from adagauss.data.images import LabelledImages, Subset
from adagauss.methods import lwf, make_method
from adagauss.methods.lwf import ADC, LDC, SDC, attack, kernel_weights, linear_map
from adagauss.parts.drift import Adapter, AffineMap, Drift
from adagauss.utils.runtime import Runtime

S = 6
DIGITS = load_dataset("digits")
SHIFT = torch.linspace(-2, 3, S)
MAP = torch.eye(S) + 0.3 * torch.randn(S, S, generator=torch.Generator().manual_seed(5))


def some(classes: list[int], each: int = 30) -> LabelledImages:
    """A few digits of some classes, labelled with words."""
    data = DIGITS.train.of_classes(classes)
    kept = torch.cat([torch.nonzero(data.targets == index).flatten()[:each] for index in range(len(classes))])
    return LabelledImages(Subset(data.images, kept), data.targets[kept], tuple(f"digit {c}" for c in classes))


def moved_task(weight: Tensor, shift: Tensor) -> tuple[CurrentTask, ClassGaussians, ClassGaussians]:
    """A second task with F_t(x) = F_{t−1}(x)·weight + shift exactly; old classes as they were, and as they are now."""
    torch.manual_seed(0)
    before = build_extractor(BackboneConfig(name="convnet", features=S), (1, 8, 8), DIGITS.mean, DIGITS.std).eval()
    assert isinstance(before.bottleneck, nn.Linear)
    with torch.no_grad():
        before.bottleneck.weight.mul_(20)  # features of an untrained network hardly differ between images
    after = copy.deepcopy(before)
    assert isinstance(after.bottleneck, nn.Linear)
    with torch.no_grad():
        after.bottleneck.weight.copy_(weight.T @ before.bottleneck.weight)
        after.bottleneck.bias.copy_(before.bottleneck.bias @ weight + shift)
    network, previous = (Network(extractor, IncrementalHead(S)).frozen_copy() for extractor in (after, before))
    augmentation = Augmentation(crop_padding=1, flip=False)
    now = CurrentTask(1, some([0, 1, 2]), network, previous, augmentation, Runtime())
    past = some([3, 4, 5])
    banks = [
        ClassGaussians.from_features(extract_features(f, past.images, now.runtime), past.labels)
        for f in (before, after)
    ]
    return now, banks[0], banks[1]


@pytest.mark.parametrize("drift", [SDC(), SDC(normalize=False), ADC(candidates=20)], ids=repr)
def test_means_follow_a_translation_exactly(drift: Drift) -> None:
    now, memory, truth = moved_task(torch.eye(S), SHIFT)
    moved = drift.move(memory, now)
    torch.testing.assert_close(moved.means, truth.means, atol=1e-4, rtol=1e-4)
    assert torch.equal(moved.packed, memory.packed)


@pytest.mark.parametrize(
    ("drift", "shift"),
    [(LDC(ridge=0.0), torch.zeros(S)), (AffineMap(ridge=0.0), SHIFT)],
    ids=["ldc", "affine"],
)
def test_gaussians_follow_a_linear_map_exactly(drift: Drift, shift: Tensor) -> None:
    now, memory, truth = moved_task(MAP, shift)
    moved = drift.move(memory, now)
    assert float((memory.means - truth.means).abs().max()) > 0.1
    torch.testing.assert_close(moved.means, truth.means, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(moved.covariances, truth.covariances, atol=1e-3, rtol=1e-3)


def test_ldc_carries_means_without_covariances() -> None:
    now, memory, truth = moved_task(MAP, torch.zeros(S))
    means_only = ClassGaussians.from_features(memory.means, memory.labels, "none")
    torch.testing.assert_close(LDC(ridge=0.0).move(means_only, now).means, truth.means, atol=1e-3, rtol=1e-3)


def test_ldc_ridge_stays_at_the_identity_where_there_are_no_data() -> None:
    old = torch.zeros(20, S)
    old[:, :2] = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    weight = linear_map(old, 2 * old, 1e-6, toward=torch.eye(old.shape[1], dtype=torch.float64))
    expected = torch.diag(torch.tensor([2.0, 2.0] + [1.0] * (S - 2), dtype=torch.float64))
    torch.testing.assert_close(weight, expected, atol=1e-4, rtol=0)


def test_a_linear_map_is_ridge_regression_with_a_penalty_relative_to_the_mean_square() -> None:
    generator = torch.Generator().manual_seed(0)
    old, new, start = (torch.randn(rows, S, generator=generator).double() for rows in (40, 40, S))
    penalty = 0.1 * float(old.square().sum()) / S
    expected = Ridge(alpha=penalty, fit_intercept=False).fit(old.numpy(), new.numpy()).coef_.T
    np.testing.assert_allclose(linear_map(old, new, 0.1), expected, rtol=1e-9)
    torch.testing.assert_close(linear_map(old, new, 0.1, start), start + linear_map(old, new - old @ start, 0.1))
    torch.testing.assert_close(linear_map(old, new, 1e9, start), start, rtol=1e-5, atol=1e-5)


def test_sdc_moves_each_mean_with_the_images_around_it() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[10.0, 0, 0], [0, 10.0, 0]], dtype=torch.float64)
    points = (centres.repeat_interleave(50, 0) + torch.randn(100, 3, generator=generator)).double()
    drift = torch.tensor([[1.0, 2, 3], [-1, 0, 5]], dtype=torch.float64).repeat_interleave(50, 0)
    moved = kernel_weights(centres, points, sigma=1.0) @ drift
    torch.testing.assert_close(moved, drift[[0, 50]])


@pytest.mark.parametrize("sigma", [0.01, 0.2])
def test_sdc_weights_sum_to_one_however_far_the_mean_is(sigma: float) -> None:
    points = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).double()
    weights = kernel_weights(torch.stack([points[0], points[0] + 1e4]), points, sigma)
    torch.testing.assert_close(weights.sum(1), torch.ones(2, dtype=torch.float64))


def test_sdc_in_blocks_of_classes_equals_sdc_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, memory, _ = moved_task(MAP, SHIFT)
    whole = SDC().move(memory, now).means
    monkeypatch.setattr(lwf, "CLASS_BLOCK", 1)
    torch.testing.assert_close(SDC().move(memory, now).means, whole)


def test_adc_images_come_nearer_to_the_prototype_and_stay_images() -> None:
    now, memory, _ = moved_task(torch.eye(S), SHIFT)
    assert now.previous is not None
    extractor, target = now.previous.extractor, memory.means[0].float()
    pixels = to_float(now.data.images.batch(torch.arange(20)))
    bent = attack(extractor, pixels, target, step=25 * (20 / 100) ** 0.5, iterations=3)
    with torch.no_grad():
        before, after = ((extractor(x) - target).norm(dim=1) for x in (pixels, bent))
    assert float(after.mean()) < 0.8 * float(before.mean())
    assert float(bent.min()) >= 0
    assert float(bent.max()) <= 1


def test_adc_step_is_the_published_one_in_standardised_pixels() -> None:
    torch.manual_seed(0)
    config = BackboneConfig(name="convnet", features=S)
    extractor = build_extractor(config, (3, 8, 8), (0.2, 0.4, 0.6), (0.1, 0.5, 2.0)).eval()
    pixels, target = torch.rand(20, 3, 8, 8), torch.zeros(S)
    standard = ((pixels - extractor.mean) / extractor.std).requires_grad_()
    loss = (extractor.bottleneck(extractor.trunk(standard)) - target).square().mean()
    (gradient,) = torch.autograd.grad(loss, standard)
    expected = (standard - 3.0 * gradient / gradient.norm()) * extractor.std + extractor.mean
    bent = attack(extractor, pixels, target, step=3.0, iterations=1)
    torch.testing.assert_close(bent, expected.detach().clamp(0, 1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("candidates", "step"), [(25, 12.5), (1000, 25 * 0.9**0.5)])
def test_adc_step_shrinks_with_the_batch(candidates: int, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now, memory, _ = moved_task(torch.eye(S), SHIFT)
    steps: list[float] = []

    def spy(extractor: object, images: Tensor, target: Tensor, step: float, iterations: int) -> Tensor:
        steps.append(step)
        return images

    monkeypatch.setattr(lwf, "attack", spy)
    ADC(candidates=candidates).move(memory, now)
    assert steps == pytest.approx([step] * 3)


def test_adc_falls_back_to_plain_images_where_no_image_reaches_the_prototype() -> None:
    now, memory, _ = moved_task(torch.eye(S), SHIFT)
    far = memory.with_statistics(memory.means * torch.tensor([[1.0], [1.0], [1e4]]), None)
    moved = ADC(candidates=5, iterations=1).move(far, now)
    torch.testing.assert_close(moved.means - far.means, SHIFT.double().expand(3, S), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["adagauss-linear", "adagauss-affine", "adagauss+"])
@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_presets_of_adagauss_fit_its_variants(name: str, preset: str) -> None:
    method = make_method(name, preset)
    reduction = "sum" if preset == "paper" else "mean"
    assert plain(method.representation.terms["distillation"])["reduction"] == reduction
    if isinstance(method.drift, Adapter):
        assert method.drift.reduction == reduction
    else:
        assert isinstance(method.drift, AffineMap)
