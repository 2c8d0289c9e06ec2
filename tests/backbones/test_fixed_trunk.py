"""A trunk that never learns: its features are computed once, and a bottleneck that starts as their components."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from adagauss.backbones import Extractor
from adagauss.core.learn import Learner
from adagauss.core.task import CurrentTask
from adagauss.errors import ConfigError
from tests.contracts.toy import toy_learner, toy_tasks

FIXED: dict[str, Any] = {
    "backbone.train_blocks": "none",
    "backbone.features": 6,
    "backbone.bottleneck_init": "pca",
    "augmentation.crop_padding": 0,
    "augmentation.policy": "none",
    "augmentation.flip": True,
    "representation.label_augmentation.kind": "none",
    "representation.full_rate": "bottleneck",
    "drift.views": 2,
}


def learned(method: str, **settings: Any) -> Learner:
    """A learner after three tasks."""
    learner = toy_learner(method, None, **FIXED, **settings)
    for task in toy_tasks():
        learner.learn(task)
    return learner


def test_the_bottleneck_starts_as_the_principal_components_of_the_first_task() -> None:
    learner = toy_learner("adagauss", None, **FIXED)
    images = toy_tasks()[0].images
    features = learner.features(images, bottleneck=False)
    extractor = learner.network.extractor
    extractor.init_pca(features)
    rows = features.double().numpy()
    _, deviations, directions = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    expected = (rows - rows.mean(0)) @ directions[:6].T / deviations[:6] * np.sqrt(len(rows) - 1)
    found = learner.features(images).double().numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-4)
    np.testing.assert_allclose(np.cov(found.T), np.eye(6), atol=1e-4)
    assert isinstance(extractor.bottleneck, torch.nn.Linear)
    weight = extractor.bottleneck.weight
    assert bool((weight.gather(1, weight.abs().argmax(1, keepdim=True)) > 0).all())


def test_components_without_variance_keep_their_random_weights() -> None:
    extractor = toy_learner("adagauss", None, **FIXED).network.extractor
    assert isinstance(extractor.bottleneck, torch.nn.Linear)
    before = extractor.bottleneck.weight.detach().clone()
    extractor.init_pca(torch.randn(4, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(before.shape[1]))
    changed = (extractor.bottleneck.weight != before).any(1)
    assert changed.tolist() == [True] + [False] * 5


@pytest.mark.parametrize("method", ["adagauss", "efc"])
def test_training_on_cached_features_is_training_on_images(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = learned(method)
    monkeypatch.setattr(CurrentTask, "caches_frozen", False)
    state, plain = cached.state.state_dict(), learned(method).state.state_dict()
    assert state.keys() == plain.keys()
    differing = [name for name, value in state.items() if not torch.allclose(value, plain[name], rtol=1e-3, atol=1e-4)]
    assert not differing


def test_the_trunk_sees_each_image_and_its_mirror_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = toy_learner("adagauss", None, **FIXED)
    trunk, seen = learner.network.extractor.trunk, [0]

    def count(self: Any, images: Tensor, *read: Any) -> Tensor:
        seen[0] += len(images)
        features: Tensor = forward(self, images, *read)
        return features

    forward = type(trunk).forward
    monkeypatch.setattr(type(trunk), "forward", count)
    tasks = toy_tasks()
    for task in tasks:
        learner.learn(task)
    assert seen[0] == 2 * sum(map(len, tasks))


def test_an_extractor_without_its_bottleneck_shares_the_trunk() -> None:
    extractor = toy_learner("adagauss", None, **FIXED).network.extractor
    bare = extractor.without_bottleneck()
    assert isinstance(extractor.bottleneck, torch.nn.Linear)
    assert isinstance(bare, Extractor)
    assert bare.trunk is extractor.trunk
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(extractor.eval().bottleneck(bare.eval()(images)), extractor(images))


def test_parallel_convolutions_need_a_trunk_that_learns() -> None:
    with pytest.raises(ConfigError, match="train_blocks=all"):
        toy_learner("ssre", None, **{"backbone.train_blocks": "none"}).learn(toy_tasks()[0])
