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
from adagauss.methods.fetril import Similarity, TranslatedLinear, linear_svm, nearest_classes, pseudo_features
from adagauss.parts.classifiers import LinearScorer


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


@pytest.mark.parametrize(("similarity", "nearest"), [("euclidean", 1), ("cosine", 0)])
def test_nearness_by_distance_and_by_angle_differ(similarity: Similarity, nearest: int) -> None:
    old = torch.tensor([[1.0, 0.0]])
    new = torch.tensor([[9.0, 0.1], [0.5, 0.5]])
    assert nearest_classes(old, new, similarity).tolist() == [nearest]


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


def small_learner(preset: str | None, **settings: object) -> Learner:
    digits = load_dataset("digits")
    given = {key.replace("__", "."): value for key, value in settings.items()}
    method = make_method("fetril", preset, {"representation.first.epochs": 1, **given}, dataset_layers("digits"))
    return Learner(method, (1, 8, 8), digits.mean, digits.std)


def test_the_svm_of_a_learner_is_fitted_on_unit_pseudo_and_real_features() -> None:
    train = load_dataset("digits").train
    learner = small_learner(None)
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


def test_the_fc_layer_starts_from_its_rows_of_the_task_before() -> None:
    train = load_dataset("digits").train
    learner = small_learner("fc", classifier__recipe__epochs=1, classifier__recipe__learning_rate=1e-12)
    learner.learn(train.of_classes([0, 1]))
    assert isinstance(learner.method.classifier, TranslatedLinear)
    before = learner.state.scorer
    learner.learn(train.of_classes([2]))
    after = learner.state.scorer
    assert isinstance(before, LinearScorer)
    assert isinstance(after, LinearScorer)
    assert after.weight.shape[0] == 3
    torch.testing.assert_close(after.weight[:2], before.weight, rtol=0, atol=1e-7)
    torch.testing.assert_close(after.bias[:2], before.bias, rtol=0, atol=1e-7)
