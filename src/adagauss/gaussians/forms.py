"""How the covariance of one class is written as a row of numbers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from adagauss import linalg, low_rank
from adagauss.errors import ConfigError
from adagauss.low_rank import Factored

CovarianceKind = Literal["full", "diagonal", "low_rank", "shared", "none"]


class Form:
    """Rows of ``width`` numbers. This base stores nothing."""

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def width(self) -> int:
        """Numbers per covariance."""
        return 0

    def pack(self, matrices: Tensor) -> Tensor:
        """(..., width) rows of (..., S, S) matrices."""
        return matrices.new_zeros(*matrices.shape[:-2], 0)

    def scatter(self, centred: Tensor) -> Tensor:
        """The row of XᵀX, from (N, S) rows X."""
        return centred.new_zeros(0)

    def unpack(self, packed: Tensor) -> Tensor:
        """(..., S, S) matrices of rows."""
        raise ConfigError("this memory stores only means; set memory.kind=gaussians to store covariances")

    def possible(self, packed: Tensor) -> Tensor:
        """(C,): which of (C, width) rows can be those of covariances."""
        return torch.ones(len(packed), dtype=torch.bool)

    def times(self, packed: Tensor, amounts: Tensor) -> Tensor:
        """Rows of matrices times numbers, which have the axes of ``packed`` but the last."""
        return packed * amounts.unsqueeze(-1)

    def plus(self, one: Tensor, other: Tensor, delta: Tensor) -> Tensor:
        """The row of Σ₁ + Σ₂ + δδᵀ."""
        return one + other + self.scatter(delta.unsqueeze(0))

    def total(self, packed: Tensor, weights: Tensor) -> Tensor:
        """(S, S): Σ_c w_c Σ_c, without all matrices in memory."""
        return self.unpack((weights.unsqueeze(1) * packed).sum(0))


class Full(Form):
    """The lower triangle."""

    @property
    def width(self) -> int:
        return linalg.packed_size(self.size)

    def pack(self, matrices: Tensor) -> Tensor:
        return linalg.pack_triangle(matrices)

    def scatter(self, centred: Tensor) -> Tensor:
        return linalg.pack_triangle(centred.T @ centred)

    def unpack(self, packed: Tensor) -> Tensor:
        return linalg.unpack_triangle(packed, self.size)

    def possible(self, packed: Tensor) -> Tensor:
        # One by one: a factor of each is as large as the matrix.
        return torch.tensor([linalg.is_covariance(self.unpack(row)) for row in packed], dtype=torch.bool)


class Diagonal(Form):
    """The variances."""

    @property
    def width(self) -> int:
        return self.size

    def pack(self, matrices: Tensor) -> Tensor:
        return matrices.diagonal(dim1=-2, dim2=-1)

    def scatter(self, centred: Tensor) -> Tensor:
        return centred.square().sum(0)

    def unpack(self, packed: Tensor) -> Tensor:
        return torch.diag_embed(packed)

    def possible(self, packed: Tensor) -> Tensor:
        return (packed >= 0).all(1)


class LowRank(Form):
    """diag(d) + FᵀF: d, then the r rows of F. Variances of features are exact, covariances approximate."""

    def __init__(self, size: int, rank: int) -> None:
        super().__init__(size)
        self.rank = rank

    @property
    def width(self) -> int:
        return self.size * (1 + self.rank)

    def pack(self, matrices: Tensor) -> Tensor:
        return self._row(low_rank.of_covariance(matrices, self.rank))

    def scatter(self, centred: Tensor) -> Tensor:
        return self._row(low_rank.of_rows(centred, self.rank))

    def unpack(self, packed: Tensor) -> Tensor:
        return low_rank.dense(self.parts(packed))

    def possible(self, packed: Tensor) -> Tensor:
        return (packed[:, : self.size] >= 0).all(1)

    def times(self, packed: Tensor, amounts: Tensor) -> Tensor:
        variances, factors = self.parts(packed)
        roots = amounts.sqrt()
        return self._row(Factored(variances * amounts.unsqueeze(-1), factors * roots[..., None, None]))

    def plus(self, one: Tensor, other: Tensor, delta: Tensor) -> Tensor:
        return self._row(low_rank.added(self.parts(one), self.parts(other), delta))

    def total(self, packed: Tensor, weights: Tensor) -> Tensor:
        variances, factors = self.parts(packed)
        rows = factors.flatten(0, 1)
        return torch.diag(weights @ variances) + (weights.repeat_interleave(self.rank).unsqueeze(1) * rows).T @ rows

    def parts(self, packed: Tensor) -> Factored:
        """d and F of rows."""
        variances, factors = packed[..., : self.size], packed[..., self.size :]
        return Factored(variances, torch.unflatten(factors, -1, (self.rank, self.size)))

    def _row(self, matrix: Factored) -> Tensor:
        return torch.cat([matrix.variances, matrix.factors.flatten(-2)], -1)


def form_of(size: int, covariance: CovarianceKind, rank: int) -> Form:
    """The form that a bank of this kind has; a shared covariance is a full one."""
    if covariance == "low_rank":
        return LowRank(size, rank)
    return {"full": Full, "shared": Full, "diagonal": Diagonal, "none": Form}[covariance](size)
