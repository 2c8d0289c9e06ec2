"""Learning without forgetting: its loss against one computed by hand, and heads that stay fixed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from adagauss.backbones import BackboneConfig, IncrementalHead, Network, build_extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.task import CurrentTask
from adagauss.data.augment import Augmentation
from adagauss.data.dataset import load_dataset
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.methods import dataset_layers, make_method
from adagauss.parts.representation import Step
from adagauss.utils.runtime import Runtime, RuntimeConfig
from tests.contracts.toy import taught

RUNTIME = Runtime(RuntimeConfig(device="cpu"))


def softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def by_hand(old: Tensor, new: Tensor, targets: Tensor, temperature: float, weight: float) -> tuple[float, float]:
    """(cross-entropy of the new outputs, λ · distillation of the old ones), each as a plain sum."""
    olds = old.shape[1]
    cross_entropy = distillation = 0.0
    for before, after, target in zip(old.tolist(), new.tolist(), targets.tolist(), strict=True):
        cross_entropy -= math.log(softmax(after[olds:], 1.0)[target])
        teacher, student = softmax(before, temperature), softmax(after[:olds], temperature)
        distillation -= sum(p * math.log(q) for p, q in zip(teacher, student, strict=True))
    return cross_entropy / len(old), weight * distillation / len(old)


def test_loss_is_the_one_computed_by_hand() -> None:
    torch.manual_seed(0)
    extractor = build_extractor(BackboneConfig(name="convnet", features=None), (1, 8, 8), (0.5,), (0.3,))
    network = Network(extractor, IncrementalHead(extractor.size)).eval()
    for classes in (2, 1):
        network.head.grow(classes)
    previous = network.frozen_copy()
    network.head.grow(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    targets = torch.tensor([0, 2, 1, 1, 0])
    data = LabelledImages(ArrayImages(torch.zeros(5, 1, 8, 8, dtype=torch.uint8)), targets, ("x", "y", "z"))
    now = CurrentTask(2, data, network, previous, Augmentation.none(), RUNTIME)
    step = Step(torch.rand(5, 1, 8, 8), targets, now, ClassGaussians(64, "none"), torch.Generator(), extractor)

    terms = make_method("lwf", settings={"representation.terms.distillation.weight": 3.0}).representation.terms
    losses = {
        name: term.weight * loss.detach() for name, term in terms.items() if (loss := term.loss(step)) is not None
    }
    old, new = previous.head.seen(previous.extractor(step.images)), network.head.seen(step.features)
    cross_entropy, distillation = by_hand(old, new, targets, temperature=2.0, weight=3.0)
    assert abs(float(losses["cross_entropy"]) - cross_entropy) < 1e-5
    assert abs(float(losses["distillation"]) - distillation) < 1e-5


def test_old_heads_stay_fixed_while_the_extractor_learns() -> None:
    digits = load_dataset("digits")
    settings = {f"representation.{when}.{key}": 1 for when in ("first", "later") for key in ("epochs",)}
    learner = Learner(
        make_method("lwf", None, settings, dataset_layers("digits")), (1, 8, 8), digits.mean, digits.std, RUNTIME
    )
    learner.learn(digits.train.of_classes([0, 1]))
    head = {name: value.clone() for name, value in learner.network.head.state_dict().items()}
    extractor = learner.network.extractor.state_dict()["trunk.conv1.weight"].clone()
    learner.learn(digits.train.of_classes([2, 3]))
    after = learner.network.head.state_dict()
    assert all(torch.equal(after[name], value) for name, value in head.items())
    assert not torch.equal(learner.network.extractor.state_dict()["trunk.conv1.weight"], extractor)


@pytest.mark.parametrize("name", ["sdc", "ldc", "adc", "dpcr"])
def test_old_outputs_learn_under_drift_compensation(name: str) -> None:
    before = taught(name, 1).network.head.class_parameters()[0]
    after = taught(name, 2).network.head.class_parameters()[0]
    assert not torch.equal(after[: len(before)], before)
    assert torch.equal(
        taught("lwf", 2).network.head.class_parameters()[0][:2], taught("lwf", 1).network.head.class_parameters()[0]
    )
