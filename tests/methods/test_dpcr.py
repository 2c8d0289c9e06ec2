"""DPCR: moments that follow a linear map, and a ridge regression rebuilt from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as JointRidge
from torch import Tensor

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.methods import dataset_layers, make_method
from adagauss.methods.dpcr import DualProjection, Ridge, ridge_from_statistics, row_space_projectors
from adagauss.methods.lwf import linear_map
from adagauss.parts.classifiers import LinearScorer

SIZE = 6


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classes_of(counts: list[int], seed: int = 0) -> tuple[Tensor, list[int]]:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    features = draws(len(labels), SIZE, seed=seed) + 2 * draws(len(counts), SIZE, seed=seed + 1)[labels]
    return features, labels


def test_second_moments_are_the_sums_of_outer_products() -> None:
    features, labels = classes_of([20, 3, 2])
    moments = ClassGaussians.from_features(features, labels).second_moments
    for label in range(3):
        mine = features[torch.tensor(labels) == label]
        torch.testing.assert_close(moments[label], mine.T @ mine)


def test_the_memory_follows_a_known_linear_map_exactly() -> None:
    features, labels = classes_of([20, 9, 30])
    memory = ClassGaussians.from_features(features, labels)
    mapping = draws(SIZE, SIZE, seed=5)
    current = draws(50, SIZE, seed=6)
    moved = DualProjection().transport(memory, linear_map(current, current @ mapping, 1e-9))
    truth = ClassGaussians.from_features(features @ mapping, labels)
    torch.testing.assert_close(moved.means, truth.means, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moved.covariances, truth.covariances, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moved.second_moments, truth.second_moments, rtol=1e-6, atol=1e-6)
    assert torch.equal(moved.counts, memory.counts)


def test_a_class_of_few_images_keeps_to_the_space_it_filled() -> None:
    features, labels = classes_of([20, 3])
    memory = ClassGaussians.from_features(features, labels)
    mapping = draws(SIZE, SIZE, seed=5)
    moved = DualProjection().transport(memory, mapping)
    basis = torch.linalg.qr(features[20:].T).Q
    truth = ClassGaussians.from_features(features[20:] @ mapping @ basis @ basis.T, [1] * 3)
    torch.testing.assert_close(moved.means[1:], truth.means)
    torch.testing.assert_close(moved.covariances[1:], truth.covariances, atol=1e-9, rtol=1e-7)
    free = DualProjection(project=False).transport(memory, mapping)
    torch.testing.assert_close(free.means[1], (features[20:] @ mapping).mean(0))


def test_projectors_have_the_rank_of_the_class_whatever_the_scale() -> None:
    features, labels = classes_of([20, 3])
    for scale in (1e-6, 1.0, 1e6):
        projectors = row_space_projectors(ClassGaussians.from_features(features * scale, labels).second_moments)
        torch.testing.assert_close(projectors @ projectors, projectors)
        assert projectors.diagonal(dim1=1, dim2=2).sum(1).round().tolist() == [6, 3]


@pytest.mark.parametrize(("gamma", "relative"), [(0.5, False), (0.05, True)])
def test_the_regression_from_statistics_equals_joint_ridge_on_all_features(gamma: float, relative: bool) -> None:
    features, labels = classes_of([20, 3, 9])
    first, second = ClassGaussians(SIZE), ClassGaussians(SIZE)
    first.add(features[:23], labels[:23])
    second.add(features[23:], labels[23:])
    first.merge(second)
    penalty = gamma * float(features.square().sum()) / SIZE if relative else gamma
    joint = JointRidge(alpha=penalty, fit_intercept=False, solver="svd").fit(features.numpy(), np.eye(3)[labels])
    np.testing.assert_allclose(ridge_from_statistics(first, gamma, relative), joint.coef_.T, rtol=1e-8, atol=1e-12)


def test_a_relative_penalty_does_not_feel_the_scale_of_features() -> None:
    features, labels = classes_of([20, 9])
    small, large = (ClassGaussians.from_features(features * scale, labels) for scale in (1.0, 100.0))
    torch.testing.assert_close(
        ridge_from_statistics(small, 0.1, relative=True), 100 * ridge_from_statistics(large, 0.1, relative=True)
    )


def test_the_classifier_of_a_learner_whose_features_do_not_move_is_joint_ridge() -> None:
    digits = load_dataset("digits")
    # Frozen after the first task, when there is nothing to distil.
    settings = {
        "representation.first.epochs": 1,
        "representation.later": None,
        "representation.terms.distillation": None,
    }
    learner = Learner(
        make_method("dpcr", settings=settings, layers=dataset_layers("digits")), (1, 8, 8), digits.mean, digits.std
    )
    for classes in ((4, 1), (7,), (0, 2)):
        learner.learn(digits.train.of_classes(classes))
    seen = digits.train.of_classes([4, 1, 7, 0, 2])
    features = learner.features(seen.images).double()
    right = np.eye(5)[seen.targets.numpy()]
    coefficients = JointRidge(alpha=200.0, fit_intercept=False, solver="svd").fit(features.numpy(), right).coef_
    expected = coefficients / np.linalg.norm(coefficients, axis=1, keepdims=True)
    assert isinstance(learner.method.classifier, Ridge)
    scorer = learner.state.scorer
    assert isinstance(scorer, LinearScorer)
    np.testing.assert_allclose(scorer.weight, expected, atol=1e-5)
    assert not scorer.bias.any()


def test_a_learner_whose_features_do_not_move_keeps_its_memory() -> None:
    digits = load_dataset("digits")
    # A rate of nothing and frozen batch norm: the extractor is trained, but stays where it was.
    settings = {
        "representation.first.epochs": 3,
        "representation.later.epochs": 1,
        "representation.later.learning_rate": 1e-30,
        "backbone.batch_norm": "frozen",
        "backbone.features": 8,
        "drift.views": 0,
    }
    learner = Learner(
        make_method("dpcr", settings=settings, layers=dataset_layers("digits")), (1, 8, 8), digits.mean, digits.std
    )
    learner.learn(digits.train.of_classes([0, 1]))
    before = learner.memory
    learner.learn(digits.train.of_classes([2, 3]))
    torch.testing.assert_close(learner.memory.means[:2], before.means, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(learner.memory.covariances[:2], before.covariances, rtol=1e-3, atol=1e-3)
