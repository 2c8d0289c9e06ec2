"""Covariances of few factors and a diagonal, beside the same matrices written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagauss.core import linalg, low_rank
from adagauss.core.low_rank import Factored

SIZE = 7
few_examples = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**20)
ranks = st.integers(1, SIZE + 2)


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def factored(classes: int, rank: int, seed: int) -> Factored:
    return Factored(0.1 + numbers(classes, SIZE, seed=seed).square(), numbers(classes, rank, SIZE, seed=seed + 1))


@few_examples
@given(seed=seeds, rank=ranks, classes=st.integers(1, 5))
def test_distances_and_determinants_are_those_of_the_whole_matrices(seed: int, rank: int, classes: int) -> None:
    matrices, means = factored(classes, rank, seed), 5 + numbers(classes, SIZE, seed=seed + 2)
    points = 5 + numbers(9, SIZE, seed=seed + 3)
    ours = low_rank.whiten(means, matrices, torch.float64)
    whole = linalg.whiten(means, low_rank.dense(matrices), torch.float64)
    expected = linalg.squared_distances(points, whole)
    # One class at a time: blocks must not change anything.
    torch.testing.assert_close(low_rank.squared_distances(points, ours, 1), expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.log_det, whole.log_det)
    single = low_rank.squared_distances(points, low_rank.whiten(means, matrices))
    torch.testing.assert_close(single.double(), expected, rtol=1e-3, atol=1e-3)


@few_examples
@given(seed=seeds, rank=ranks)
def test_the_variance_of_each_feature_is_kept_whatever_the_rank(seed: int, rank: int) -> None:
    rows = numbers(5 if seed % 2 else 20, SIZE, seed=seed) * torch.arange(1, SIZE + 1)
    scatter = rows.T @ rows
    for found in (low_rank.of_rows(rows, rank), low_rank.of_covariance(scatter, rank)):
        torch.testing.assert_close(low_rank.total_variances(found), scatter.diagonal())
        torch.testing.assert_close(low_rank.dense(found), low_rank.dense(low_rank.of_rows(rows, rank)))
        assert (found.variances >= 0).all()
        assert found.factors.shape == (rank, SIZE)


@few_examples
@given(seed=seeds, rank=st.integers(1, SIZE - 1), noise=st.floats(0.01, 10))
def test_a_matrix_of_this_form_is_found_again(seed: int, rank: int, noise: float) -> None:
    whole = noise * torch.eye(SIZE, dtype=torch.float64) + low_rank.dense(
        Factored(torch.zeros(SIZE, dtype=torch.float64), numbers(rank, SIZE, seed=seed))
    )
    torch.testing.assert_close(low_rank.dense(low_rank.of_covariance(whole, rank)), whole)


@few_examples
@given(seed=seeds)
def test_few_rows_are_kept_exactly(seed: int) -> None:
    rows = numbers(4, SIZE, seed=seed)
    torch.testing.assert_close(low_rank.dense(low_rank.of_rows(rows, 4)), rows.T @ rows)


@few_examples
@given(seed=seeds, rank=st.integers(1, 6))
def test_sums_keep_variances_and_are_exact_if_there_are_factors_enough(seed: int, rank: int) -> None:
    one, other = (Factored(*(part[0] for part in factored(1, rank, seed + step))) for step in (0, 7))
    delta = numbers(SIZE, seed=seed + 20)
    expected = low_rank.dense(one) + low_rank.dense(other) + torch.outer(delta, delta)
    found = low_rank.added(one, other, delta)
    torch.testing.assert_close(low_rank.total_variances(found), expected.diagonal())
    wide = one._replace(factors=torch.cat([one.factors, one.factors.new_zeros(SIZE, SIZE)]))
    torch.testing.assert_close(low_rank.dense(low_rank.added(wide, other, delta)), expected)


@few_examples
@given(seed=seeds, amount=st.floats(0, 5))
def test_shrinkage_and_correlation_are_those_of_the_whole_matrices(seed: int, amount: float) -> None:
    matrices = factored(2, 3, seed)
    matrices.variances[:, 0], matrices.factors[:, :, 0] = 0, 0  # a constant feature
    whole = low_rank.dense(matrices)
    torch.testing.assert_close(low_rank.dense(low_rank.correlation(matrices)), linalg.correlation(whole))
    shrunk = low_rank.dense(low_rank.shrink_to_identity(matrices, amount))
    torch.testing.assert_close(shrunk, linalg.shrink_to_identity(whole, amount))


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6])
def test_classes_without_a_variance_have_finite_scores(scale: float) -> None:
    rows = scale * numbers(3, SIZE, seed=1)
    matrices = low_rank.of_rows(rows - rows.mean(0), 4)
    means = torch.stack([rows.mean(0), rows.mean(0) + max(1, scale)])
    both = Factored(*(torch.stack([part, part]) for part in matrices))
    distances = low_rank.squared_distances(rows, low_rank.whiten(means, both))
    assert torch.isfinite(distances).all()
    assert (distances[:, 0] <= distances[:, 1]).all()
