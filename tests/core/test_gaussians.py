"""Class Gaussians: streaming estimates, densities, samples and transport."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagauss.core import gaussians
from adagauss.core.gaussians import ClassGaussians, CovarianceKind
from adagauss.core.linalg import Affine
from adagauss.errors import ConfigError, DataError
from adagauss.parts.classifiers import Bayes

SIZE = 4
KINDS: tuple[CovarianceKind, ...] = ("full", "diagonal", "none")
few_examples = settings(max_examples=25, deadline=None)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(rows: int = 60, seed: int = 0) -> Tensor:
    mix = torch.randn(SIZE, SIZE, generator=generator(99), dtype=torch.float64)
    return torch.randn(rows, SIZE, generator=generator(seed), dtype=torch.float64) @ mix + 5


def some_labels(rows: int = 60, classes: int = 3, seed: int = 0) -> list[int]:
    return torch.randint(classes, (rows,), generator=generator(seed)).tolist()


def bank(kind: CovarianceKind = "full", seed: int = 0) -> ClassGaussians:
    return ClassGaussians.from_features(draw(seed=seed), some_labels(), kind)


def assert_same(one: ClassGaussians, two: ClassGaussians) -> None:
    assert set(one.labels) == set(two.labels)
    two = two.select(one.labels)
    assert torch.equal(one.counts, two.counts)
    torch.testing.assert_close(one.means, two.means)
    torch.testing.assert_close(one.packed, two.packed)


def test_from_features_equals_numpy() -> None:
    features, labels = draw(), np.array(some_labels())
    result = ClassGaussians.from_features(features, labels.tolist())
    for index, label in enumerate(result.labels):
        rows = features.numpy()[labels == label]
        np.testing.assert_allclose(result.means[index], rows.mean(0))
        np.testing.assert_allclose(result.covariances[index], np.cov(rows.T))
        assert int(result.counts[index]) == len(rows)


@pytest.mark.parametrize("kind", KINDS)
@few_examples
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_streaming_equals_batch_in_any_chunking_and_order(kind: CovarianceKind, seed: int, cuts: list[int]) -> None:
    features, labels = draw(), some_labels()
    order = torch.randperm(60, generator=generator(seed)).tolist()
    streamed = ClassGaussians(SIZE, kind)
    bounds = [0, *sorted(cuts), 60]
    for start, stop in itertools.pairwise(bounds):
        chosen = order[start:stop]
        streamed.add(features[chosen], [labels[row] for row in chosen])
    assert_same(streamed, ClassGaussians.from_features(features, labels, kind))


@few_examples
@given(owners=st.lists(st.integers(0, 3), min_size=60, max_size=60), kind=st.sampled_from(KINDS))
def test_merging_the_banks_of_several_workers_equals_one_bank(owners: list[int], kind: CovarianceKind) -> None:
    features, labels = draw(), some_labels()
    merged = ClassGaussians(SIZE, kind)
    for worker in range(4):
        rows = [row for row, owner in enumerate(owners) if owner == worker]
        merged.merge(ClassGaussians.from_features(features[rows], [labels[row] for row in rows], kind))
    assert_same(merged, ClassGaussians.from_features(features, labels, kind))


def test_far_from_the_origin_nothing_cancels() -> None:
    features = draw()
    near, far = ClassGaussians(SIZE), ClassGaussians(SIZE)
    for rows in features.view(12, 5, SIZE):
        near.add(rows, [0] * len(rows))
        far.add(rows + 1e6, [0] * len(rows))
    torch.testing.assert_close(far.covariances, near.covariances, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "labels", [("a", "b"), (0, 1), (1.5, "x"), ((1, 2), (3,)), (None, True), (frozenset({1}), b"z")]
)
def test_labels_of_any_hashable_kind(labels: tuple[Hashable, Hashable]) -> None:
    features = draw(20)
    result = ClassGaussians.from_features(features, [labels[row % 2] for row in range(20)])
    assert result.labels == list(labels)
    torch.testing.assert_close(result.means[1], features[1::2].mean(0))


def test_labels_of_arrays_become_plain_numbers() -> None:
    features = draw(6)
    for labels in (torch.tensor([2, 2, 7, 7, 7, 2]), np.array([2, 2, 7, 7, 7, 2])):
        result = ClassGaussians.from_features(features, labels)
        assert [(type(label), label) for label in result.labels] == [(int, 2), (int, 7)]


def test_select() -> None:
    whole = bank()
    first, second, third = whole.labels
    picked = whole.select([third, first])
    assert picked.labels == [third, first]
    assert torch.equal(picked.means, whole.means[[2, 0]])
    assert torch.equal(picked.covariances, whole.covariances[[2, 0]])
    with pytest.raises(DataError, match="not in memory"):
        picked.select([second])


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_transport_by_a_linear_map_equals_the_closed_form(kind: CovarianceKind) -> None:
    result = bank(kind)
    weight = torch.randn(SIZE, SIZE, generator=generator(5))
    moved = result.transport(lambda points: points @ weight + 2, 40_000, generator(2))
    exact = result.transport_affine(Affine(weight.double(), torch.full((SIZE,), 2.0, dtype=torch.float64)))
    scale = exact.covariances.diagonal(dim1=1, dim2=2).sqrt()
    assert float(((moved.means - exact.means) / scale).abs().max()) < 0.03
    error = (moved.covariances - exact.covariances) / (scale[:, :, None] * scale[:, None, :])
    assert float(error.abs().max()) < 0.04
    assert moved.labels == result.labels
    assert torch.equal(moved.counts, result.counts)
    again = result.transport(lambda points: points @ weight + 2, 40_000, generator(2))
    assert torch.equal(moved.packed, again.packed)


@pytest.mark.parametrize("samples", [2, 4096, 5000])
def test_transport_re_estimates_from_all_samples_across_blocks(samples: int) -> None:
    seen: list[Tensor] = []

    def record(points: Tensor) -> Tensor:
        seen.append(points.clone())
        return points

    result = bank().select([0])
    moved = result.transport(record, samples, generator())
    rows = torch.cat([points for points in seen if len(points) > 1]).double()
    assert len(rows) == samples
    torch.testing.assert_close(moved.means[0], rows.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moved.covariances[0], rows.T.cov(), rtol=1e-5, atol=1e-5)


def test_transport_with_one_sample_has_no_covariance_to_estimate() -> None:
    with pytest.raises((ConfigError, DataError)):
        bank().transport(lambda points: points, samples=1)


def test_transport_affine_is_exact() -> None:
    result = bank()
    affine = Affine(draw(SIZE, seed=7), draw(1, seed=8)[0])
    moved = result.transport_affine(affine)
    weight = affine.weight.numpy()
    for index in range(len(result)):
        np.testing.assert_allclose(moved.means[index], result.means[index].numpy() @ weight + affine.bias.numpy())
        expected = weight.T @ result.covariances[index].numpy() @ weight
        np.testing.assert_allclose(moved.covariances[index], expected, atol=1e-9)


def test_transport_of_an_empty_bank_is_empty() -> None:
    assert len(ClassGaussians(SIZE).transport(lambda points: points)) == 0


def test_second_moments_are_sums_over_the_features() -> None:
    features, labels = draw(), torch.tensor(some_labels())
    result = ClassGaussians.from_features(features, labels)
    for index, label in enumerate(result.labels):
        rows = features[labels == label]
        torch.testing.assert_close(result.second_moments[index], rows.T @ rows)


def test_sums_over_classes_are_those_of_the_matrices() -> None:
    found = bank()
    torch.testing.assert_close(found.mean_covariance, found.covariances.mean(0))
    weights = found.freedom.view(-1, 1, 1)
    torch.testing.assert_close(found.pooled, (weights * found.covariances).sum(0) / weights.sum())


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_blocks_of_classes_change_nothing(kind: CovarianceKind, monkeypatch: pytest.MonkeyPatch) -> None:
    affine = Affine(draw(SIZE, seed=3), draw(1, seed=4)[0])
    found, rule = bank(kind), Bayes(pooled_shrinkage=0.5)
    once, score = found.transport_affine(affine, 0.1), rule.scorer(found, torch.float64)(draw())
    monkeypatch.setattr(gaussians, "BLOCK_BYTES", 1)
    assert_same(found.transport_affine(affine, 0.1), once)
    torch.testing.assert_close(rule.scorer(found, torch.float64)(draw()), score)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_numbers_per_class(size: int) -> None:
    stored = [ClassGaussians.from_features(torch.randn(3, size), [0, 0, 0], kind) for kind in KINDS]
    numbers = [one.means.numel() + one.packed.numel() for one in stored]
    assert numbers == [size + size * (size + 1) // 2, 2 * size, size]


def test_diagonal_keeps_variances_and_none_keeps_means() -> None:
    full, diagonal, none = bank("full"), bank("diagonal"), bank("none")
    variances = full.covariances.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal.covariances, torch.diag_embed(variances))
    torch.testing.assert_close(none.means, full.means)
    with pytest.raises(ConfigError, match=r"memory\.kind=gaussians"):
        _ = none.covariances


def test_a_selected_bank_learns_on_its_own() -> None:
    original = bank()
    original.select(original.labels).add(draw(30, seed=4), [0] * 30)
    assert_same(original, bank())


def test_bad_features_are_refused_and_change_nothing() -> None:
    result = bank()
    bad = draw(5)
    bad[2, 1] = float("nan")
    with pytest.raises(DataError, match="1 of 5 features hold NaN"):
        result.add(bad, [0] * 5)
    with pytest.raises(DataError, match=rf"\(N, {SIZE}\)"):
        result.add(torch.zeros(5, SIZE + 1), [0] * 5)
    with pytest.raises(DataError, match=rf"\(N, {SIZE}\)"):
        result.add(torch.zeros(SIZE), [0] * SIZE)
    with pytest.raises(DataError, match="5 features but 4 labels"):
        result.add(draw(5), [0] * 4)
    with pytest.raises(ConfigError, match="banks differ"):
        result.merge(ClassGaussians(SIZE, "diagonal"))
    assert_same(result, bank())
