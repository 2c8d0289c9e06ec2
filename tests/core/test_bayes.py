from __future__ import annotations

import math
import pickle
import warnings
from fractions import Fraction
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
from adagauss.data.images import ArrayImages, LabelledImages
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
        GaussianBayes(covariance="diagonal", shrinkage=0.1, pooled_shrinkage=0.5),
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
def test_one_sample_of_each_of_many_classes_gives_no_warning() -> None:
    rule = GaussianBayes().fit(np.arange(80.0).reshape(40, 2), np.arange(40))
    assert rule.predict([[10.0, 11.0]]).tolist() == [5]


def test_more_features_than_samples_and_constant_features() -> None:
    X, y = make_blobs(12, 30, centers=3, random_state=3)
    X[:, 7] = 5.0
    for settings in ({}, {"shrinkage": 1.0}, {"pooled_shrinkage": 0.5}, {"correlation": True}):
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
    changed = rule.set_params(pooled_shrinkage=0.7, shrinkage=0.2).predict_proba(X)
    assert not np.allclose(before, changed)
    np.testing.assert_allclose(changed, GaussianBayes(pooled_shrinkage=0.7, shrinkage=0.2).fit(X, y).predict_proba(X))


def test_normalised_rule_ignores_length() -> None:
    X, y = load_iris(return_X_y=True)
    rule = GaussianBayes(normalize=True, correlation=True, shrinkage=1.0, log_det=False, priors=False).fit(X, y)
    np.testing.assert_allclose(rule.predict_proba(X), rule.predict_proba(3 * X))


def test_pickle_and_clone(blobs: Blobs) -> None:
    X, y = blobs
    rule = GaussianBayes(pooled_shrinkage=0.2).fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(rule)).predict_proba(X), rule.predict_proba(X))
    fresh = clone(rule)
    assert fresh.get_params() == rule.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match="covariance"):
        GaussianBayes(covariance="round").fit([[0.0], [1.0]], [0, 1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="pooled_shrinkage"):
        GaussianBayes(pooled_shrinkage=2.0).fit([[0.0], [1.0]], [0, 1])
    rule = GaussianBayes().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(DataError, match="one kind"):
        rule.partial_fit([[2.0]], ["two"])
    assert rule.classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="features"):
        rule.partial_fit([[2.0, 3.0]], [2])


def exact_predictions(samples: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], points: np.ndarray[Any, Any]) -> Any:
    """Quadratic discriminant analysis of two features in rational numbers: nothing is rounded but the logarithm."""
    zero, rules = Fraction(0), []
    for label in np.unique(labels):
        rows = [(Fraction(x), Fraction(y)) for x, y in samples[labels == label].tolist()]
        mx, my = (sum((row[axis] for row in rows), zero) / len(rows) for axis in (0, 1))
        a = sum(((x - mx) ** 2 for x, _ in rows), zero) / (len(rows) - 1)
        b = sum(((x - mx) * (y - my) for x, y in rows), zero) / (len(rows) - 1)
        c = sum(((y - my) ** 2 for _, y in rows), zero) / (len(rows) - 1)
        rules.append((mx, my, a, b, c, a * c - b * b))

    def score(point: list[float], rule: tuple[Fraction, ...]) -> float:
        mx, my, a, b, c, determinant = rule
        x, y = Fraction(point[0]) - mx, Fraction(point[1]) - my
        return -float((c * x * x - 2 * b * x * y + a * y * y) / determinant) - math.log(determinant)

    return np.array([max(range(len(rules)), key=lambda k: score(point, rules[k])) for point in points.tolist()])


def narrow_classes(power: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two classes that differ along the narrow direction of a covariance of condition 10^power."""
    draws = np.random.default_rng(power)
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    labels = np.repeat([0, 1], 60)
    scale = np.array([1.0, 10 ** (-power / 2)])
    shifts = np.stack([np.zeros(120), 3.0 * labels], 1)
    samples, points = ((draws.normal(size=(120, 2)) + shifts) * scale @ turn for _ in range(2))
    return samples, labels, points


@pytest.mark.parametrize("power", [0, 4, 8, 11])
def test_up_to_the_limit_predictions_are_those_of_exact_arithmetic_without_a_warning(power: int) -> None:
    samples, labels, points = narrow_classes(power)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = GaussianBayes(priors=False).fit(samples, labels).predict(points)
    assert (found == exact_predictions(samples, labels, points)).all()


@pytest.mark.parametrize("power", [15, 24])
def test_beyond_the_limit_rounding_decides_and_a_warning_names_class_and_condition(power: int) -> None:
    samples, labels, points = narrow_classes(power)
    with pytest.warns(UserWarning, match=r"covariance of class [01] has the condition number (inf|\d\.\de\+1[3-9])"):
        found = GaussianBayes(priors=False).fit(samples, labels).predict(points)
    assert (found == exact_predictions(samples, labels, points)).mean() < 0.99
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as the sentence says
        GaussianBayes(shrinkage=0.1).fit(samples, labels).predict(points)


def test_features_in_different_units_are_not_ill_conditioned() -> None:
    draws = np.random.default_rng(0).normal(size=(80, 2)) * np.array([1.0, 1e-9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianBayes().fit(draws, np.repeat([0, 1], 40)).predict(draws)


def test_integers_beyond_float_range_are_rejected_among_floats() -> None:
    large = 2**53 + 1
    rows = np.random.default_rng(0).normal(size=(4, 2))
    with pytest.raises(DataError, match=f"label {large} is too large among labels that are not whole"):
        GaussianBayes().fit(rows, [large, large, 0.5, 0.5])
    with pytest.raises(DataError, match="some labels are text and some are numbers"):
        GaussianBayes().fit(rows, (1, 1, "1", "1"))
    rule = GaussianBayes().fit(rows, [large, large, large + 1, large + 1])
    assert rule.classes_.tolist() == [large, large + 1]
    with pytest.raises(DataError, match="is too large among"):
        rule.partial_fit(rows, [1.0, 1.0, 2.0, 2.0])
    with pytest.raises(DataError, match="is too large among"):
        LabelledImages.from_labels(ArrayImages(np.zeros((2, 4, 4), np.uint8)), [large, 0.5])
