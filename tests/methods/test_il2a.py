"""IL2A: labels of mixtures, and the bound that replays Gaussians without sampling."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.backbones import BackboneConfig, IncrementalHead, Network, build_extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import CurrentTask
from adagauss.core.train import Sampler
from adagauss.data.augment import Augmentation
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.methods.pass_ import Mixtures, SemanticAugmentation, pair_index, upper_bound_logits
from adagauss.parts.representation import Step
from adagauss.utils.runtime import Runtime, RuntimeConfig


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("classes", [2, 3, 7, 50])
def test_every_pair_of_classes_has_a_label_of_its_own(classes: int) -> None:
    pairs = torch.tensor(list(itertools.combinations(range(classes), 2)))
    index = pair_index(pairs[:, 0], pairs[:, 1], classes)
    assert sorted(index.tolist()) == list(range(classes * (classes - 1) // 2))
    assert torch.equal(index, pair_index(pairs[:, 1], pairs[:, 0], classes))


def test_mixtures_lie_between_images_of_two_classes_and_are_labelled_by_them() -> None:
    """An image of class c is the constant 10ᶜ, so that a mixture tells of which classes it is made."""
    targets = torch.tensor([0, 1, 2, 2, 1, 0, 0])
    images = (10.0 ** targets.view(-1, 1, 1, 1)).expand(-1, 1, 2, 2)
    part = Mixtures(times=4)
    larger, labels = part.augment(images, targets, 3, False, seeded())
    assert torch.equal(larger[:7], images)
    assert torch.equal(labels[:7], targets)
    values, mixed = larger[7:, 0, 0, 0], labels[7:]
    assert 7 < len(mixed) <= 4 * 7
    assert int(mixed.max()) < 3 + part.auxiliary_outputs(3, False)
    levels = [1.0, 10.0, 100.0]
    for value, label in zip(values.tolist(), mixed.tolist(), strict=True):
        low, high = list(itertools.combinations(levels, 2))[label - 3]
        assert 0.4 <= (value - low) / (high - low) <= 0.6


def test_shares_outside_the_interval_become_halves() -> None:
    shares = Mixtures(alpha=1.0, between=(0.4, 0.6)).shares(2000, seeded())
    inside = shares != 0.5
    assert 0.1 < float(inside.double().mean()) < 0.3  # Beta(1, 1) is uniform: a fifth lies inside
    assert float(shares.min()) >= 0.4
    assert float(shares.max()) <= 0.6


def test_mixtures_hang_on_the_generator_alone() -> None:
    images, targets = torch.rand(6, 1, 4, 4), torch.arange(6) % 3
    one, again = (Mixtures().augment(images, targets, 3, True, seeded(5)) for _ in range(2))
    other = Mixtures().augment(images, targets, 3, True, seeded(6))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert one[0].shape != other[0].shape or not torch.equal(one[0], other[0])


def test_a_task_of_one_class_has_nothing_to_mix() -> None:
    images, targets = torch.rand(4, 1, 4, 4), torch.zeros(4, dtype=torch.long)
    larger, labels = Mixtures().augment(images, targets, 1, True, seeded())
    assert torch.equal(larger, images)
    assert torch.equal(labels, targets)
    assert Mixtures().auxiliary_outputs(1, True) == 0


def brute_force(weight: Tensor, bias: Tensor, bank: ClassGaussians, c: int, ratio: float) -> Tensor:
    """The logits of one class, output by output."""
    mean, covariance = bank.means[c].float(), bank.covariances[c].float()
    logits = []
    for row, offset in zip(weight, bias, strict=True):
        apart = row - weight[c]
        logits.append(row @ mean + offset + ratio / 2 * (apart @ covariance @ apart))
    return torch.stack(logits)


def remembered(size: int = 64, classes: int = 3) -> ClassGaussians:
    torch.manual_seed(1)
    features = torch.randn(40 * classes, size) @ (torch.randn(size, size) / size**0.5)
    return ClassGaussians.from_features(features, [row % classes for row in range(40 * classes)])


def test_upper_bound_logits_are_the_formula_output_by_output() -> None:
    bank, weight, bias = remembered(8), torch.randn(5, 8), torch.randn(5)
    classes = torch.tensor([2, 0])
    means, covariances = bank.means.float(), bank.covariances.float()
    logits = upper_bound_logits(weight, bias, means[classes], covariances[classes], classes, 2.5)
    expected = torch.stack([brute_force(weight, bias, bank, c, 2.5) for c in (2, 0)])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_the_bound_holds_for_samples_of_the_wider_gaussian() -> None:
    bank, weight, bias, ratio = remembered(8), torch.randn(5, 8), torch.randn(5), 2.5
    for c in range(3):
        wider = bank.select([c]).with_statistics(bank.means[c : c + 1], ratio * bank.covariances[c : c + 1])
        samples = Sampler(wider).draw(torch.zeros(20_000, dtype=torch.long), seeded())
        expected = F.cross_entropy(samples @ weight.T + bias, torch.full((20_000,), c))
        bound = F.cross_entropy(brute_force(weight, bias, bank, c, ratio).unsqueeze(0), torch.tensor([c]))
        assert float(expected) < float(bound)


def test_term_is_the_mean_over_drawn_classes_and_its_gradient_reaches_all_rows() -> None:
    torch.manual_seed(0)
    extractor = build_extractor(BackboneConfig(name="convnet", features=None), (1, 8, 8), (0.5,), (0.3,))
    network = Network(extractor, IncrementalHead(extractor.size)).eval()
    network.head.grow(3)
    network.head.grow(2, 1)
    data = LabelledImages(ArrayImages(torch.zeros(6, 1, 8, 8)), torch.arange(6) % 2, ("p", "q"))
    now = CurrentTask(1, data, network, None, Augmentation.none(), Runtime(RuntimeConfig(device="cpu")))
    bank = remembered()
    step = Step(torch.zeros(30, 1, 8, 8), torch.zeros(30), now, bank, seeded(2), extractor, originals=6)
    live = SemanticAugmentation(temperature=0.7, ratio=1.5).start(now, bank)
    assert live is not None
    loss = live(step)

    drawn = torch.randint(3, (6,), generator=seeded(2))
    weight, bias = network.head.class_parameters(detach=False)
    logits = torch.stack([brute_force(weight, bias, bank, int(c), 1.5) for c in drawn])
    expected = F.cross_entropy(logits / 0.7, drawn)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
    rows = [block.weight for block in network.head.blocks]
    for ours, theirs in zip(torch.autograd.grad(loss, rows), torch.autograd.grad(expected, rows), strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
        assert ours.any(1).all()
    assert SemanticAugmentation().start(now, ClassGaussians(64)) is None
    assert SemanticAugmentation().loss(step) is None
