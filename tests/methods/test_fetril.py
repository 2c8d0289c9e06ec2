"""FeTrIL: translated features, and the linear classifiers on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.svm import LinearSVC
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.methods import dataset_layers, make_method
from adagauss.methods.fetril import linear_svm, pseudo_features


def features_of(classes: int, images: int = 12, size: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(classes * images) % classes
    centres = 3 * torch.randn(classes, size, generator=generator, dtype=torch.float64)
    return centres[targets] + torch.randn(len(targets), size, generator=generator, dtype=torch.float64), targets


def test_pseudo_features_have_the_mean_of_the_old_class_and_the_shape_of_the_nearest_new_one() -> None:
    features, targets = features_of(3)
    old_means = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    pseudo, owners = pseudo_features(features, targets, old_means)
    new_means = torch.stack([features[targets == target].mean(0) for target in range(3)])
    for old in range(4):
        near = int((new_means - old_means[old]).norm(dim=1).argmin())
        mine = pseudo[owners == old]
        torch.testing.assert_close(mine.mean(0), old_means[old], rtol=0, atol=1e-13)
        torch.testing.assert_close(mine - old_means[old], features[targets == near] - new_means[near])


def test_the_first_task_has_no_pseudo_features() -> None:
    features, targets = features_of(2)
    pseudo, owners = pseudo_features(features, targets, features[:0])
    assert pseudo.shape == (0, 5)
    assert owners.shape == (0,)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_linear_svm_scores_as_scikit_learn_decides(classes: int) -> None:
    features, targets = features_of(classes)
    weight, bias = linear_svm(features, targets, classes)
    machine = LinearSVC(C=1.0, tol=1e-4, dual=False).fit(features.numpy(), targets.numpy())
    ours = features @ weight.T + bias
    assert ours.shape == (len(features), classes)
    np.testing.assert_array_equal(ours.argmax(1), machine.predict(features.numpy()))
    decision = machine.decision_function(features.numpy())
    np.testing.assert_allclose(ours[:, -1], decision if classes == 2 else decision[:, -1], rtol=1e-10)


def small_learner() -> Learner:
    digits = load_dataset("digits")
    method = make_method("fetril", None, {"representation.first.epochs": 1}, dataset_layers("digits"))
    return Learner(method, (1, 8, 8), digits.mean, digits.std)


def test_the_svm_of_a_learner_is_fitted_on_unit_pseudo_and_real_features() -> None:
    train = load_dataset("digits").train
    learner = small_learner()
    learner.learn(train.of_classes([0, 1]))
    learner.learn(train.of_classes([2, 3]))
    new = train.of_classes([2, 3])
    features = learner.features(new.images).double()
    pseudo, owners = pseudo_features(features, new.targets, learner.memory.means[:2])
    everything = F.normalize(torch.cat([pseudo, features]), dim=1).numpy()
    machine = LinearSVC(C=1.0, tol=1e-4, dual=False).fit(everything, torch.cat([owners, new.targets + 2]).numpy())
    probe = learner.features(load_dataset("digits").test.images)
    expected = machine.decision_function(F.normalize(probe.double(), dim=1).numpy())
    np.testing.assert_allclose(learner.state.scorer(probe).numpy(), expected, atol=1e-4)
