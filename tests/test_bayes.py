from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import NearestCentroid
from sklearn.utils.estimator_checks import parametrize_with_checks

from adagauss.bayes import GaussianBayes
from adagauss.errors import ConfigError, DataError

Array = npt.NDArray[Any]
Blobs = tuple[Array, Array]


@pytest.fixture
def blobs() -> Blobs:
    """Four overlapping classes of unequal size and shape, in five dimensions."""
    X, y = make_blobs([30, 50, 70, 90], 5, cluster_std=[1.0, 2.0, 3.0, 4.0], random_state=0)
    return X @ np.random.default_rng(0).normal(size=(5, 5)), y


def unbiased_qda(X: Array, y: Array) -> QuadraticDiscriminantAnalysis:
    """Scikit-learn's analysis with covariances over n − 1, whichever its release divides by."""
    analysis = QuadraticDiscriminantAnalysis().fit(X, y)
    for label, scaling in zip(analysis.classes_, analysis.scalings_, strict=True):
        scaling *= np.trace(np.cov(X[y == label].T)) / scaling.sum()
    return analysis


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        GaussianBayes(),
        GaussianBayes(covariance="diagonal", shrinkage=0.1, tied=0.5),
        GaussianBayes(covariance="none", priors=False),
        GaussianBayes(log_det=False, shrinkage=3.0, correlation=True),
    ]
)
def test_scikit_learn_conventions(estimator: GaussianBayes, check: Any) -> None:
    check(estimator)


def test_equals_quadratic_discriminant_analysis(blobs: Blobs) -> None:
    X, y = blobs
    ours, theirs = GaussianBayes().fit(X, y), unbiased_qda(X, y)
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))


def test_diagonal_equals_naive_bayes(blobs: Blobs) -> None:
    X, y = blobs
    theirs = GaussianNB(var_smoothing=0).fit(X, y)
    # GaussianNB divides by n, not n − 1.
    theirs.var_ *= (np.bincount(y) / (np.bincount(y) - 1))[:, None]
    ours = GaussianBayes(covariance="diagonal").fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-10)


def test_without_covariance_is_nearest_mean(blobs: Blobs) -> None:
    X, y = blobs
    ours = GaussianBayes(covariance="none", priors=False).fit(X, y)
    np.testing.assert_array_equal(ours.predict(X), NearestCentroid().fit(X, y).predict(X))


def test_two_classes_have_one_decision(blobs: Blobs) -> None:
    X, y = blobs
    two = y < 2
    ours = GaussianBayes().fit(X[two], y[two])
    theirs = unbiased_qda(X[two], y[two])
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), rtol=1e-8, atol=1e-8)


def test_streaming_equals_batch(blobs: Blobs) -> None:
    X, y = blobs
    order = np.random.default_rng(1).permutation(len(y))
    streamed = GaussianBayes()
    for chunk in np.array_split(order, 17):
        streamed.partial_fit(X[chunk], y[chunk])
        streamed.predict(X[:2])  # a factorisation in between must not be kept
    batch = GaussianBayes().fit(X, y)
    np.testing.assert_allclose(streamed.predict_log_proba(X), batch.predict_log_proba(X), rtol=1e-9, atol=1e-9)


def test_new_classes_at_any_call(blobs: Blobs) -> None:
    X, y = blobs
    grown = GaussianBayes()
    for label in (2, 0, 3, 1):
        grown.partial_fit(X[y == label], y[y == label])
        assert label in grown.classes_
    np.testing.assert_array_equal(grown.classes_, [0, 1, 2, 3])
    np.testing.assert_allclose(grown.predict_proba(X), GaussianBayes().fit(X, y).predict_proba(X), atol=1e-12)


def test_longer_names_are_not_cut() -> None:
    rule = GaussianBayes().partial_fit([[0.0], [1.0]], ["a", "a"]).partial_fit([[9.0], [8.0]], ["longer", "longer"])
    assert rule.predict([[0.4], [8.4]]).tolist() == ["a", "longer"]


def test_announced_classes_wait_for_samples() -> None:
    rule = GaussianBayes().partial_fit([[0.0], [1.0], [5.0], [6.0]], [0, 0, 2, 2], classes=[0, 1, 2])
    probabilities = rule.predict_proba([[0.5], [3.0]])
    assert probabilities.shape == (2, 3)
    np.testing.assert_array_equal(probabilities[:, 1], 0)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert rule.partial_fit([[3.0], [3.2]], [1, 1]).predict([[3.1]]).tolist() == [1]


def test_a_class_of_one_sample_borrows_the_mean_covariance(blobs: Blobs) -> None:
    X, y = blobs
    alone = X[0] + 50
    rule = GaussianBayes(priors=False).fit(np.vstack([X, alone]), np.append(y, 9))
    mean = np.mean([np.cov(X[y == label].T) for label in range(4)], axis=0)
    points = np.vstack([X[:5], alone + 0.5])
    ratio = rule.predict_log_proba(points)[:, 4] - rule.predict_log_proba(points)[:, 0]
    expected = [_log_density(x, alone, mean) - _log_density(x, X[y == 0].mean(0), np.cov(X[y == 0].T)) for x in points]
    np.testing.assert_allclose(ratio, expected, rtol=1e-8)


def test_classes_of_one_sample_each_use_the_identity() -> None:
    rule = GaussianBayes().fit([[0.0, 0.0], [4.0, 0.0]], ["left", "right"])
    np.testing.assert_allclose(rule.decision_function([[2.0, 7.0], [3.0, 0.0]]), [0.0, 4.0], atol=1e-12)


def _log_density(x: Array, mean: Array, covariance: Array) -> float:
    delta = x - mean
    return float(-(delta @ np.linalg.solve(covariance, delta) + np.linalg.slogdet(covariance)[1]) / 2)


@pytest.mark.filterwarnings("error")
def test_one_sample_of_each_of_many_classes_is_no_cause_for_warning() -> None:
    rule = GaussianBayes().fit(np.arange(80.0).reshape(40, 2), np.arange(40))
    assert rule.predict([[10.0, 11.0]]).tolist() == [5]


def test_more_features_than_samples_and_constant_features() -> None:
    X, y = make_blobs(12, 30, centers=3, random_state=3)
    X[:, 7] = 5.0
    for settings in ({}, {"shrinkage": 1.0}, {"tied": 0.5}, {"correlation": True}):
        rule = GaussianBayes(**settings).fit(X, y)
        assert np.isfinite(rule.predict_proba(X)).all()
        assert rule.score(X, y) == 1


def test_far_from_the_origin(blobs: Blobs) -> None:
    X, y = blobs
    near, far = GaussianBayes().fit(X, y), GaussianBayes().fit(X + 1e6, y)
    np.testing.assert_allclose(far.predict_proba(X + 1e6), near.predict_proba(X), atol=1e-5)


def test_settings_may_change_after_fitting(blobs: Blobs) -> None:
    X, y = blobs
    rule = GaussianBayes().fit(X, y)
    before = rule.predict_proba(X)
    changed = rule.set_params(tied=0.7, shrinkage=0.2).predict_proba(X)
    assert not np.allclose(before, changed)
    np.testing.assert_allclose(changed, GaussianBayes(tied=0.7, shrinkage=0.2).fit(X, y).predict_proba(X))


def test_normalised_rule_ignores_length() -> None:
    X, y = load_iris(return_X_y=True)
    rule = GaussianBayes(normalize=True, correlation=True, shrinkage=1.0, log_det=False, priors=False).fit(X, y)
    np.testing.assert_allclose(rule.predict_proba(X), rule.predict_proba(3 * X))


def test_pickle_and_clone(blobs: Blobs) -> None:
    X, y = blobs
    rule = GaussianBayes(tied=0.2).fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(rule)).predict_proba(X), rule.predict_proba(X))
    fresh = clone(rule)
    assert fresh.get_params() == rule.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="covariance"):
        GaussianBayes(covariance="round").fit([[0.0], [1.0]], [0, 1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tied"):
        GaussianBayes(tied=2.0).fit([[0.0], [1.0]], [0, 1])
    rule = GaussianBayes().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(DataError, match="one kind"):
        rule.partial_fit([[2.0]], ["two"])
    assert rule.classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="features"):
        rule.partial_fit([[2.0, 3.0]], [2])
