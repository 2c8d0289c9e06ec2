"""Symmetric matrices in strips: all operations against the whole matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adagauss.analytic import moments as p

WIDTH = 7


@pytest.fixture(params=[1, 3, 7, 100])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Strips of several heights, whole and broken off at the end."""
    size: int = request.param
    for name in ("packed_size_strips", "strips"):
        original = getattr(p, name)
        monkeypatch.setattr(p, name, lambda *args, original=original: original(*args, size))
    return size


def packed(matrix: Tensor) -> list[Tensor]:
    strips = p.strips(torch.zeros(p.packed_size_strips(len(matrix)), dtype=matrix.dtype), len(matrix))
    root = torch.linalg.cholesky(matrix).T
    p.add_products(strips, root)
    return strips


def test_strips_multiply_factor_and_solve_as_the_whole_matrix(block: int) -> None:
    X = torch.randn(60, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = X.T @ X
    right = torch.randn(WIDTH, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    strips = packed(matrix)
    assert len(strips) == -(-WIDTH // block)
    torch.testing.assert_close(p.multiply(strips, right), matrix @ right)
    torch.testing.assert_close(p.diagonal(strips), matrix.diagonal())
    torch.testing.assert_close(p.some_rows(strips, torch.tensor([6, 0, 3])), matrix[[6, 0, 3]])
    factors = torch.linspace(0.5, 2, WIDTH, dtype=torch.float64)
    weighed = matrix * torch.outer(factors, factors)
    assert p.square_norm(strips, factors) == pytest.approx(float(weighed.square().sum()))
    assert p.factorise(strips)
    torch.testing.assert_close(p.solve_factorised(strips, right), torch.linalg.solve(matrix, right))


def test_a_matrix_without_a_factor_is_reported() -> None:
    strips = packed(torch.eye(5, dtype=torch.float64))
    p.add_diagonal(strips, torch.tensor(-2.0))
    assert not p.factorise(strips)


def test_strips_keep_little_more_than_half_of_the_matrix() -> None:
    assert p.packed_size_strips(16_000) * 8 <= 1.3e9
    assert p.packed_size_strips(p.BLOCK) == p.BLOCK**2
