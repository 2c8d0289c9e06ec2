"""Linear algebra against numpy, scipy, scikit-learn and torch.distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import mahalanobis
from sklearn.linear_model import LinearRegression, Ridge
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from adagauss.core import linalg
from adagauss.errors import ConfigError, NumericalError

few_examples = settings(max_examples=20, deadline=None)


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive_definite(*batch: int, size: int = 5, seed: int = 0) -> Tensor:
    root = random_tensor(*batch, size, 3 * size, seed=seed)
    return root @ root.mT / size


def assert_factors(matrix: Tensor, result: linalg.SafeCholesky) -> None:
    identity = torch.eye(matrix.shape[-1], dtype=torch.float64)
    shifted = matrix + result.jitter[..., None, None] * identity
    torch.testing.assert_close(result.factor @ result.factor.mT, shifted)


class TestSafeCholesky:
    def test_positive_definite_is_factored_as_it_is(self) -> None:
        matrix = positive_definite(3)
        result = linalg.safe_cholesky(matrix)
        assert torch.equal(result.jitter, torch.zeros(3, dtype=torch.float64))
        torch.testing.assert_close(result.factor, torch.linalg.cholesky(matrix))

    @pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
    def test_singular_reports_a_jitter_relative_to_its_scale(self, scale: float) -> None:
        row = scale**0.5 * random_tensor(1, 6)
        matrix = row.T @ row
        result = linalg.safe_cholesky(matrix)
        assert 0 < float(result.jitter) <= 1e-9 * float(linalg.mean_diagonal(matrix))
        assert_factors(matrix, result)

    def test_zero_matrix_has_a_finite_factor(self) -> None:
        result = linalg.safe_cholesky(torch.zeros(4, 4))
        assert float(result.jitter) > 0
        assert bool(torch.isfinite(result.factor).all())
        assert bool((result.factor.diagonal() > 0).all())

    def test_matrices_of_a_batch_are_treated_one_by_one(self) -> None:
        good = positive_definite()
        singular = torch.ones(5, 5, dtype=torch.float64)
        result = linalg.safe_cholesky(torch.stack([good, singular, torch.zeros_like(good)]))
        assert float(result.jitter[0]) == 0
        assert bool((result.jitter[1:] > 0).all())
        torch.testing.assert_close(result.factor[0], torch.linalg.cholesky(good))
        assert_factors(torch.stack([good, singular, torch.zeros_like(good)]), result)

    def test_a_larger_floor_adds_more(self) -> None:
        matrix = torch.ones(3, 3, dtype=torch.float64)
        small, large = (float(linalg.safe_cholesky(matrix, floor).jitter) for floor in (1e-12, 1e-6))
        assert small < 1e-6 <= large

    @pytest.mark.parametrize("below", [1e-9, 1e-5, 1e-3, 0.05])
    def test_slightly_indefinite_is_shifted_until_it_works(self, below: float) -> None:
        matrix = torch.diag(torch.tensor([1.0, 1.0, 1.0, -below], dtype=torch.float64))
        result = linalg.safe_cholesky(matrix)
        assert float(result.jitter) > below
        assert_factors(matrix, result)

    def test_far_from_positive_definite_is_refused(self) -> None:
        with pytest.raises(NumericalError, match="positive definite"):
            linalg.safe_cholesky(torch.diag(torch.tensor([1.0, -1.0])))

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_not_finite_raises(self, bad: float) -> None:
        matrix = torch.eye(3)
        matrix[1, 1] = bad
        with pytest.raises(NumericalError, match="NaN or infinite"):
            linalg.safe_cholesky(torch.stack([torch.eye(3), matrix]))

    @pytest.mark.parametrize("rank", [0, 1, 3, 5])
    def test_gradient_is_finite_at_any_rank(self, rank: int) -> None:
        root = random_tensor(5, max(rank, 1)) * (rank > 0)
        matrix = torch.stack([root @ root.T, positive_definite()]).requires_grad_()
        torch.autograd.backward(linalg.safe_cholesky(matrix).factor.diagonal(dim1=-2, dim2=-1).sum())
        assert matrix.grad is not None
        assert bool(torch.isfinite(matrix.grad).all())
        assert bool((matrix.grad[1].diagonal() != 0).any())


@few_examples
@given(size=st.integers(1, 7), batch=st.integers(0, 4), seed=st.integers(0, 1000))
def test_packing_round_trip(size: int, batch: int, seed: int) -> None:
    matrix = linalg.symmetrise(random_tensor(batch, size, size, seed=seed))
    packed = linalg.pack_triangle(matrix)
    assert packed.shape == (batch, linalg.packed_size(size)) == (batch, size * (size + 1) // 2)
    assert torch.equal(linalg.unpack_triangle(packed, size), matrix)


def test_shrinkages_follow_their_formulas() -> None:
    matrix = positive_definite(3, size=4)
    numbers = matrix.numpy()
    off = 1 - np.eye(4)
    for index, one in enumerate(numbers):
        towards_identity = one + 3 * np.trace(one) / 4 * np.eye(4)
        np.testing.assert_allclose(linalg.shrink_to_identity(matrix, 3)[index], towards_identity)
        second = one + 2 * one[off == 1].mean() * off
        np.testing.assert_allclose(linalg.shrink_off_diagonal(matrix, 2)[index], second)


def test_off_diagonal_shrinkage_of_one_feature_changes_nothing() -> None:
    assert torch.equal(linalg.shrink_off_diagonal(torch.full((2, 1, 1), 3.0), 5), torch.full((2, 1, 1), 3.0))


def test_off_diagonal_shrinkage_takes_the_mean_of_entries_that_are_not_zero() -> None:
    matrix = torch.tensor([[1.0, 0.4, 0.0], [0.4, 1.0, 0.0], [0.0, 0.0, 1.0]])
    expected = torch.tensor([[1.0, 0.8, 0.4], [0.8, 1.0, 0.4], [0.4, 0.4, 1.0]])
    torch.testing.assert_close(linalg.shrink_off_diagonal(matrix, 1.0), expected)
    assert torch.equal(linalg.shrink_off_diagonal(torch.eye(3), 1.0), torch.eye(3))


def test_tukey_takes_powers_and_refuses_negative_features() -> None:
    torch.testing.assert_close(linalg.tukey(torch.tensor([0.0, 4.0]), 0.5), torch.tensor([0.0, 2.0]))
    with pytest.raises(ConfigError, match="negative"):
        linalg.tukey(torch.tensor([4.0, -1.0]), 0.5)


def test_correlation_equals_numpy() -> None:
    features = random_tensor(50, 4) @ random_tensor(4, 4, seed=1)
    covariance = linalg.sample_covariance(features)
    np.testing.assert_allclose(linalg.correlation(covariance), np.corrcoef(features.numpy().T))


def test_correlation_of_a_constant_feature() -> None:
    features = random_tensor(50, 3)
    features[:, 1] = 7.0
    result = linalg.correlation(linalg.sample_covariance(features))
    torch.testing.assert_close(result.diagonal(), torch.ones(3, dtype=torch.float64))
    assert torch.equal(result[1, [0, 2]], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(result[[0, 2], 1], torch.zeros(2, dtype=torch.float64))


def test_symmetric_kl_equals_both_divergences() -> None:
    means, others = random_tensor(2, 3, 5, seed=3)
    covariances, other_covariances = positive_definite(3, seed=1), positive_definite(3, seed=2)
    one, two = MultivariateNormal(means, covariances), MultivariateNormal(others, other_covariances)
    result = linalg.symmetric_kl(means, covariances, others, other_covariances)
    torch.testing.assert_close(result, kl_divergence(one, two) + kl_divergence(two, one))
    same = linalg.symmetric_kl(means, covariances, means, covariances)
    torch.testing.assert_close(same, torch.zeros_like(same))


@pytest.mark.parametrize("block_bytes", [1, 2000, 1 << 24])
def test_squared_distances_equal_scipy(block_bytes: int) -> None:
    points, means, covariances = random_tensor(7, 5), random_tensor(6, 5, seed=1), positive_definite(6)
    whitening = linalg.whiten(means, covariances, torch.float64)
    result = linalg.squared_distances(points, whitening, block_bytes)
    inverses = np.linalg.inv(covariances.numpy())
    expected = [[mahalanobis(x, m, inverse) ** 2 for m, inverse in zip(means, inverses, strict=True)] for x in points]
    np.testing.assert_allclose(result, expected)
    np.testing.assert_allclose(whitening.log_det, np.linalg.slogdet(covariances.numpy())[1])


def test_squared_distances_of_no_points() -> None:
    whitening = linalg.whiten(random_tensor(3, 5), positive_definite(3))
    assert linalg.squared_distances(torch.empty(0, 5), whitening).shape == (0, 3)


def test_affine_ridge_without_penalty_equals_least_squares() -> None:
    inputs, targets = 3 + random_tensor(40, 6), random_tensor(40, 3, seed=1)
    affine = linalg.affine_ridge(inputs, targets, 0.0)
    expected = LinearRegression().fit(inputs.numpy(), targets.numpy())
    np.testing.assert_allclose(affine.weight, expected.coef_.T, rtol=1e-8)
    np.testing.assert_allclose(affine.bias, expected.intercept_, rtol=1e-8)
    np.testing.assert_allclose(affine(inputs), expected.predict(inputs.numpy()), rtol=1e-8)


def test_affine_ridge_penalty_is_relative_to_the_mean_variance() -> None:
    inputs, targets = 3 + 10 * random_tensor(40, 6), random_tensor(40, 3, seed=1)
    affine = linalg.affine_ridge(inputs, targets, 0.5)
    alpha = 0.5 * len(inputs) * inputs.numpy().var(0).mean()
    expected = Ridge(alpha=alpha).fit(inputs.numpy(), targets.numpy())
    np.testing.assert_allclose(affine.weight, expected.coef_.T, rtol=1e-8)
    np.testing.assert_allclose(affine.bias, expected.intercept_, rtol=1e-8)


def test_sample_covariance_equals_numpy() -> None:
    features = 100 + random_tensor(30, 4)
    np.testing.assert_allclose(linalg.sample_covariance(features), np.cov(features.numpy().T))
    assert torch.equal(linalg.sample_covariance(features[:1]), torch.zeros(4, 4, dtype=torch.float64))
