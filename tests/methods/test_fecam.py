"""FeCAM against a direct computation from its features, step by step as the paper and its code have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.core.linalg import shrink_off_diagonal, tukey
from adagauss.data.dataset import load_dataset
from adagauss.errors import ConfigError
from adagauss.methods import dataset_layers, make_method

Floats = npt.NDArray[np.float64]
DIGITS = load_dataset("digits")


def shrunk(covariance: Floats, first: float, second: float) -> Floats:
    identity = np.eye(len(covariance))
    off = covariance[~identity.astype(bool)]
    mean_off = off[off != 0].mean()
    result: Floats = covariance + first * np.diag(covariance).mean() * identity + second * mean_off * (1 - identity)
    return result


def unit(rows: Floats) -> Floats:
    scaled: Floats = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return scaled


def direct_distances(train: list[Floats], probe: Floats, first: float, second: float) -> Floats:
    """(B, C) squared distances, from the raw features of each class."""
    points = unit(unit(probe) ** 0.5)
    columns = []
    for features in train:
        stored = shrunk(np.cov((features**0.5).T), first, second)
        again = shrunk(stored, first, second)
        deviation = np.sqrt(np.diag(again))
        precision = np.linalg.pinv(again / np.outer(deviation, deviation))
        delta = points - unit(features.mean(0) ** 0.5)
        columns.append(np.einsum("ni,ij,nj->n", delta, precision, delta))
    return np.stack(columns, 1)


@pytest.mark.parametrize(("first", "second"), [(1.0, 1.0), (1.0, 0.0), (0.3, 0.6)])
def test_scores_equal_a_direct_computation(first: float, second: float) -> None:
    settings: dict[str, Any] = {"representation.first.epochs": 1}
    for part in ("memory", "classifier"):
        settings |= {f"{part}.shrinkage": first, f"{part}.off_diagonal_shrinkage": second}
    method = make_method("fecam", settings=settings, layers=dataset_layers("digits"))
    learner = Learner(method, (1, 8, 8), DIGITS.mean, DIGITS.std)
    for classes in ((0, 1), (2, 3)):
        learner.learn(DIGITS.train.of_classes(classes))
    features = [learner.features(DIGITS.train.of_classes([c]).images).double().numpy() for c in range(4)]
    probe = learner.features(DIGITS.test.images)
    expected = direct_distances(features, probe.double().numpy(), first, second)
    np.testing.assert_allclose(-2 * learner.state.scorer(probe).numpy(), expected, rtol=2e-4, atol=1e-5)


def test_means_stay_raw_and_covariances_are_of_the_roots() -> None:
    settings = {"representation.first.epochs": 1, "memory.shrinkage": 0.0, "memory.off_diagonal_shrinkage": 0.0}
    learner = Learner(
        make_method("fecam", settings=settings, layers=dataset_layers("digits")), (1, 8, 8), DIGITS.mean, DIGITS.std
    )
    learner.learn(DIGITS.train.of_classes([0, 1]))
    features = learner.features(DIGITS.train.of_classes([1]).images).double().numpy()
    np.testing.assert_allclose(learner.memory.means[1], features.mean(0), rtol=1e-6)
    np.testing.assert_allclose(learner.memory.covariances[1], np.cov((features**0.5).T), atol=1e-7)


def test_dead_features_do_not_dilute_the_mean_off_diagonal_entry() -> None:
    alive = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    padded = torch.zeros(4, 4)
    padded[:2, :2] = alive
    assert float(shrink_off_diagonal(padded, 1.0)[0, 1]) == 2.0
    assert torch.equal(shrink_off_diagonal(torch.eye(3), 1.0), torch.eye(3))


def test_tukey_refuses_negative_numbers_and_takes_zeros() -> None:
    assert tukey(torch.tensor([0.0, 4.0]), 0.5).tolist() == [0.0, 2.0]
    with pytest.raises(ConfigError, match="negative"):
        tukey(torch.tensor([1.0, -1e-6]), 0.5)


def test_a_bottleneck_is_refused_with_the_remedy_since_its_features_are_negative() -> None:
    with pytest.raises(ConfigError, match=r"backbone\.features=null"):
        make_method("fecam", settings={"backbone.features": 16})
