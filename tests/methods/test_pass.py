"""Prototype replay: where the replayed points lie, which labels they carry, and the radius of their noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
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
from adagauss.parts.terms import PrototypeReplay, Radius, radius
from adagauss.utils.runtime import Runtime, RuntimeConfig

RUNTIME = Runtime(RuntimeConfig(device="cpu"))


def step_of(originals: int, augmented: int) -> Step:
    """A second task of one class with three auxiliary outputs, after three classes with auxiliary outputs."""
    torch.manual_seed(0)
    extractor = build_extractor(BackboneConfig(name="convnet", features=None), (1, 8, 8), (0.5,), (0.3,))
    network = Network(extractor, IncrementalHead(extractor.size)).eval()
    network.head.grow(3, 9)
    network.head.grow(1, 3)
    images = torch.zeros(augmented, 1, 8, 8)
    data = LabelledImages(ArrayImages(images), torch.zeros(augmented, dtype=torch.long), ("new",))
    now = CurrentTask(1, data, network, None, Augmentation.none(), RUNTIME)
    memory = ClassGaussians.from_features(torch.randn(30, 64), [f"old {row % 3}" for row in range(30)], "none")
    generator = torch.Generator().manual_seed(3)
    return Step(images, data.targets, now, memory, generator, extractor, originals=originals)


def radius_of(learner: Learner) -> Tensor:
    known = learner.state.states["representation/terms/prototypes"]
    assert isinstance(known, Radius)
    return known.radius


def test_radius_is_the_root_of_the_mean_trace_over_size() -> None:
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.normal(0, 1, (40, 6)), rng.normal(3, 4, (25, 6))])
    targets = np.repeat([0, 1], [40, 25])
    expected = np.sqrt(np.mean([np.trace(np.cov(features[targets == c].T)) / 6 for c in (0, 1)]))
    assert float(radius(torch.from_numpy(features), torch.from_numpy(targets))) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_loss_is_cross_entropy_over_all_outputs_of_the_drawn_classes(noise: float) -> None:
    step = step_of(originals=5, augmented=20)
    before = Radius(torch.tensor(0.3, dtype=torch.float64)) if noise else None
    loss = PrototypeReplay(noise=noise, temperature=0.5).loss(step, before)
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(3, (5,), generator=generator)
    points: Tensor = step.memory.means[drawn].float()
    if noise:
        points = points + 0.3 * torch.randn(5, 64, generator=generator)
    head = step.now.network.head
    outputs = torch.cat([block(points) for block in (*head.blocks, *head.auxiliary)], dim=1)
    assert outputs.shape == (5, 16)
    torch.testing.assert_close(loss, F.cross_entropy(outputs / 0.5, drawn))


def test_no_replay_while_nothing_is_remembered() -> None:
    step = step_of(2, 8)
    step.memory = ClassGaussians(64, "none")
    assert PrototypeReplay().loss(step) is None


def test_rotations_keep_their_outputs_and_the_radius_stays_that_of_the_first_task() -> None:
    digits = load_dataset("digits")
    short: dict[str, Any] = {f"representation.{when}.epochs": 1 for when in ("first", "later")}
    plain = {"augmentation.crop_padding": 0, "augmentation.flip": False, "augmentation.brightness": 0.0}
    method = make_method("pass", None, {**short, **plain}, dataset_layers("digits"))
    learner = Learner(method, (1, 8, 8), digits.mean, digits.std, RUNTIME)
    learner.learn(digits.train.of_classes([0, 1]))
    first = radius_of(learner)
    features = learner.features(digits.train.of_classes([0, 1]).images)
    torch.testing.assert_close(first, radius(features, digits.train.of_classes([0, 1]).targets))
    learner.learn(digits.train.of_classes([2, 3, 4]))
    assert learner.network.head.sizes == [(2, 6), (3, 9)]
    assert torch.equal(radius_of(learner), first)
    assert learner.scores(features).shape[1] == 5
