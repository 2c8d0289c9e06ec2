"""Classifiers over Gaussians against scikit-learn and against direct computation with explicit inverses."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB
from torch import Tensor, nn

from adagauss.backbones import Network
from adagauss.core.config import Part, plain
from adagauss.core.gaussians import ClassGaussians, CovarianceKind
from adagauss.core.state import Scorer
from adagauss.core.task import CurrentTask
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import ConfigError
from adagauss.methods import make_method
from adagauss.parts.classifiers import Bayes, Classifier, NearestMean, SampledLinear
from adagauss.utils.runtime import Runtime, RuntimeConfig

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
SIZE, CLASSES = 5, 3
COUNTS = (40, 80, 20)


def data(seed: int = 0, counts: tuple[int, ...] = COUNTS, apart: float = 1.0) -> tuple[Tensor, Tensor]:
    """Overlapping classes of unequal covariance and unequal number."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.Generator().manual_seed(1234)
    rows, targets = [], []
    for index, count in enumerate(counts):
        mix = torch.randn(SIZE, SIZE, generator=truth, dtype=torch.float64)
        centre = apart * torch.randn(SIZE, generator=truth, dtype=torch.float64)
        rows.append(torch.randn(count, SIZE, generator=generator, dtype=torch.float64) @ mix + centre)
        targets.append(torch.full((count,), index))
    return torch.cat(rows), torch.cat(targets)


def memory(kind: CovarianceKind = "full", apart: float = 1.0) -> ClassGaussians:
    features, targets = data(apart=apart)
    return ClassGaussians.from_features(features, targets, kind)


def current_task() -> CurrentTask:
    images = LabelledImages(ArrayImages(torch.zeros(2, 1, 2, 2)), torch.tensor([0, 1]), (0, 1))
    runtime = Runtime(RuntimeConfig(device="cpu"))
    return CurrentTask(0, images, cast(Network, nn.Identity()), None, Augmentation.none(), runtime)


def bayes(bank: ClassGaussians, **settings: object) -> Scorer:
    return fitted(Bayes.of(settings), bank)


def fitted(classifier: Classifier, bank: ClassGaussians) -> Scorer:
    return classifier.fit(bank, current_task(), None)


def between(scores: Tensor | Array) -> Array:
    """Scores relative to the first class: constants shared by all classes drop out."""
    numbers = np.asarray(scores, dtype=np.float64)
    return numbers - numbers[:, :1]


@pytest.mark.parametrize("priors", [False, True])
def test_bayes_equals_quadratic_discriminant_analysis(priors: bool) -> None:
    features, targets = data()
    points, _ = data(seed=1)
    shares = np.array(COUNTS) / sum(COUNTS) if priors else np.full(CLASSES, 1 / CLASSES)
    oracle = QuadraticDiscriminantAnalysis(priors=shares, store_covariance=True)
    oracle.fit(features.numpy(), targets.numpy())
    # Its covariances are divided by n or n − 1, depending on the release: the rule is compared, given its own.
    bank = memory().with_statistics(memory().means, torch.from_numpy(np.stack(oracle.covariance_)))
    scores = bayes(bank, priors=priors)(points)
    np.testing.assert_array_equal(scores.argmax(1), oracle.predict(points.numpy()))
    expected = oracle.predict_log_proba(points.numpy())
    np.testing.assert_allclose(between(scores), between(expected), rtol=1e-3, atol=1e-3)


def test_priors_shift_scores_by_the_log_of_the_counts() -> None:
    points, _ = data(seed=1)
    shift = bayes(memory(), priors=True)(points) - bayes(memory())(points)
    expected = np.log(np.array(COUNTS) / sum(COUNTS))
    np.testing.assert_allclose(shift, np.tile(expected, (len(points), 1)), atol=1e-4)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_diagonal_equals_naive_bayes(kind: CovarianceKind) -> None:
    features, targets = data()
    points, _ = data(seed=1)
    oracle = GaussianNB(priors=np.full(CLASSES, 1 / CLASSES), var_smoothing=0).fit(features.numpy(), targets.numpy())
    counts = np.array(COUNTS)[:, None]
    oracle.var_ *= counts / (counts - 1)  # it divides by n, the memory by n − 1
    scores = bayes(memory(kind), covariance="diagonal")(points)
    np.testing.assert_array_equal(scores.argmax(1), oracle.predict(points.numpy()))
    expected = oracle.predict_log_proba(points.numpy())
    np.testing.assert_allclose(between(scores), between(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["full", "none"])
def test_no_covariance_is_the_nearest_mean(kind: CovarianceKind) -> None:
    points, _ = data(seed=1)
    bank = memory(kind)
    distances = ((points[:, None] - bank.means) ** 2).sum(2)
    scores = bayes(bank, covariance="none")(points)
    np.testing.assert_allclose(scores, -distances / 2, rtol=1e-4, atol=1e-4)


def test_full_rule_over_a_memory_of_means_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"memory\.kind=gaussians"):
        make_method("adagauss", settings={"memory.kind": "means"})
    with pytest.raises(ConfigError, match=r"memory\.kind=gaussians"):
        bayes(memory("none"))


@pytest.mark.parametrize("pooled_shrinkage", [0.3, 1.0])
def test_tied_covariances_by_brute_force(pooled_shrinkage: float) -> None:
    points, _ = data(seed=1)
    bank = memory()
    covariances = bank.covariances.numpy()
    mixed = (1 - pooled_shrinkage) * covariances + pooled_shrinkage * covariances.mean(0)
    expected = direct_scores(points.numpy(), bank.means.numpy(), mixed, log_det=True)
    scores = bayes(bank, pooled_shrinkage=pooled_shrinkage)(points)
    np.testing.assert_allclose(between(scores), between(expected), rtol=1e-3, atol=1e-3)


def test_fully_tied_scores_are_linear_in_the_point() -> None:
    points, _ = data(seed=1)
    scores = between(bayes(memory(), pooled_shrinkage=1.0)(points))
    design = np.hstack([points.numpy(), np.ones((len(points), 1))])
    residual = scores - design @ np.linalg.lstsq(design, scores, rcond=None)[0]
    assert np.abs(residual).max() < 1e-3
    untied = between(bayes(memory())(points))
    assert np.abs(untied - design @ np.linalg.lstsq(design, untied, rcond=None)[0]).max() > 1


def direct_scores(points: Array, means: Array, covariances: Array, log_det: bool) -> Array:
    columns = []
    for mean, covariance in zip(means, covariances, strict=True):
        delta = points - mean
        score = -0.5 * np.einsum("ni,ij,nj->n", delta, np.linalg.inv(covariance), delta)
        columns.append(score - 0.5 * np.linalg.slogdet(covariance)[1] * log_det)
    return np.stack(columns, axis=1)


def test_the_settings_of_the_published_code_directly() -> None:
    points, _ = data(seed=1)
    bank = memory()
    matrices = []
    for covariance in bank.covariances.numpy():
        shrunk = covariance + 3 * np.diag(covariance).mean() * np.eye(SIZE)
        deviation = np.sqrt(np.diag(shrunk))
        matrices.append(shrunk / np.outer(deviation, deviation))
    unit = points.numpy() / np.linalg.norm(points.numpy(), axis=1, keepdims=True)
    means = bank.means.numpy() / np.linalg.norm(bank.means.numpy(), axis=1, keepdims=True)
    expected = direct_scores(unit, means, np.stack(matrices), log_det=False)
    scores = bayes(bank, shrinkage=3.0, correlation=True, normalize=True, log_det=False)(points)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scores.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("normalize", [False, True])
def test_nearest_mean(normalize: bool) -> None:
    points, _ = data(seed=1)
    bank = memory("none")
    x, means = points.numpy(), bank.means.numpy()
    if normalize:
        x, means = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, means))
    expected = -((x[:, None] - means) ** 2).sum(2)
    scorer = fitted(NearestMean(normalize=normalize), bank)
    np.testing.assert_allclose(scorer(points), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", [Bayes(), NearestMean()])
def test_far_from_the_origin_the_prediction_is_the_same(part: Classifier) -> None:
    points, _ = data(seed=1)
    bank = memory()
    near = fitted(part, bank)(points.float())
    far = fitted(part, bank.with_statistics(bank.means + 300, None))((points + 300).float())
    best = near.topk(2).values
    clear = best[:, 0] - best[:, 1] > 0.05
    assert int(clear.sum()) > 100
    assert torch.equal(near.argmax(1)[clear], far.argmax(1)[clear])


def test_sampled_linear_separates_what_can_be_separated() -> None:
    points, targets = data(seed=1, apart=30.0)
    classifier = SampledLinear(samples=1000, recipe=Recipe(epochs=5, batch_size=128, clip_norm=1.0))
    scorer = fitted(classifier, memory(apart=30.0))
    assert float((scorer(points).argmax(1) == targets).float().mean()) > 0.98


@pytest.mark.parametrize(
    "part",
    [
        Bayes(),
        Bayes(priors=True, shrinkage=3.0, correlation=True, normalize=True, log_det=False),
        NearestMean(normalize=True),
        SampledLinear(samples=256, recipe=Recipe(epochs=1, batch_size=128)),
    ],
    ids=["bayes", "published", "nearest mean", "linear"],
)
def test_state_round_trip_gives_equal_scores(part: Classifier) -> None:
    points, _ = data(seed=1)
    scorer = fitted(part, memory())
    other = cast(Classifier, Part.build("classifier", plain(part))).empty_state()
    other.load_state_dict(scorer.state_dict())
    assert torch.equal(other(points), scorer(points))
