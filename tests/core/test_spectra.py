"""Functions of eigenvalues against numpy, closed forms and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adagauss.core import linalg

few_examples = settings(max_examples=25, deadline=None)
eigenvalues = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


def covariance(values: list[float], seed: int = 0) -> torch.Tensor:
    """A symmetric matrix with these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64))
    matrix: torch.Tensor = basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T
    return matrix


@few_examples
@given(eigenvalues)
def test_the_spectrum_is_sorted_from_the_largest(values: list[float]) -> None:
    found = linalg.spectrum(covariance(values))
    assert found.tolist() == pytest.approx(sorted(values, reverse=True), rel=1e-6, abs=1e-9)


@few_examples
@given(eigenvalues, st.floats(1e-2, 10.0))
def test_absolute_rank_is_numpys_with_a_tolerance(values: list[float], tolerance: float) -> None:
    assume(all(abs(value - tolerance) > 1e-6 * value for value in values))
    matrix = covariance(values)
    ours = int(linalg.absolute_rank(linalg.spectrum(matrix), tolerance))
    assert ours == np.linalg.matrix_rank(matrix.numpy(), tol=tolerance, hermitian=True)


@few_examples
@given(eigenvalues, st.floats(1e-3, 1e3))
def test_scale_free_quantities_are_free_of_scale(values: list[float], scale: float) -> None:
    exact = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    # Powers of two change no digit, so that no eigenvalue passes a tolerance by rounding.
    power = 2.0 ** round(math.log2(scale))
    for function in (linalg.relative_rank, linalg.effective_rank, linalg.directions, linalg.condition_number):
        torch.testing.assert_close(function(power * exact), function(exact))


def test_the_absolute_rank_depends_on_the_scale() -> None:
    values = torch.tensor([1.0, 0.02, 0.001], dtype=torch.float64)
    assert [int(linalg.absolute_rank(scale * values)) for scale in (0.1, 1.0, 100.0)] == [1, 2, 3]


@few_examples
@given(eigenvalues)
def test_directions_are_those_that_stay_below_the_share(values: list[float]) -> None:
    values = sorted(values, reverse=True)
    exact = torch.tensor(values, dtype=torch.float64)
    shares = np.cumsum(values) / np.sum(values)
    expected = int(sum(share < 0.95 - 1e-12 for share in shares))
    assert int(linalg.directions(exact)) == expected


def test_directions_of_equal_eigenvalues() -> None:
    equal = torch.ones(100, dtype=torch.float64)
    assert int(linalg.directions(equal, 0.5)) == 49, "the sum of fifty reaches one half, so it is not below it"


@few_examples
@given(eigenvalues)
def test_inverse_norm_equals_that_of_the_inverse(values: list[float]) -> None:
    matrix = covariance(values).numpy()
    ours = float(linalg.inverse_norm(linalg.spectrum(torch.from_numpy(matrix))))
    assert ours == pytest.approx(np.linalg.norm(np.linalg.inv(matrix)), rel=1e-6)


def test_effective_rank_of_closed_forms() -> None:
    equal, single = torch.full((7,), 3.0, dtype=torch.float64), torch.tensor([5.0, 0, 0], dtype=torch.float64)
    assert float(linalg.effective_rank(equal)) == pytest.approx(7)
    assert float(linalg.effective_rank(single)) == pytest.approx(1)
    assert float(linalg.effective_rank(torch.zeros(4, dtype=torch.float64))) == 0


def test_a_singular_matrix_has_an_infinite_inverse_and_condition_number() -> None:
    values = torch.tensor([2.0, 1.0, -1e-18], dtype=torch.float64)
    assert float(linalg.inverse_norm(values)) == math.inf
    assert float(linalg.condition_number(values)) == math.inf


def test_every_function_works_on_batches() -> None:
    one, two = torch.tensor([4.0, 1.0, 0.1], dtype=torch.float64), torch.tensor([9.0, 9.0, 1e-4], dtype=torch.float64)
    functions = (
        linalg.absolute_rank,
        linalg.relative_rank,
        linalg.effective_rank,
        linalg.directions,
        linalg.inverse_norm,
        linalg.condition_number,
    )
    for function in functions:
        torch.testing.assert_close(function(torch.stack([one, two])), torch.stack([function(one), function(two)]))
