"""Linear discriminant analysis with one covariance for all classes, solved from the sums."""

from __future__ import annotations

from typing import Self

import torch

from adagauss.errors import ConfigError, DataError, NumericalError
from adagauss.state import Groups
from adagauss.sums.packed import add_diagonal, add_products, diagonal, factorise, solve_factorised, square_norm, strips
from adagauss.sums.ridge import Linear
from adagauss.sums.totals import FeatureSums


def oas_shrinkage(trace: float, square: float, width: int, number: int) -> float:
    """Chen et al.'s oracle approximating shrinkage of a covariance S from its trace and squared norm ‖S‖²_F.

    min(1, (a + μ²) / ((n + 1)(a − μ²/p))) with a = ‖S‖²/p² and μ = tr S/p.
    """
    mean, average = trace / width, square / width**2
    excess = (number + 1) * (average - mean**2 / width)
    return 1.0 if excess <= 0 else min(1.0, (average + mean**2) / excess)


class SharedCovariance(FeatureSums):
    """Scores x·Σ⁻¹μ_c − ½μ_cᵀΣ⁻¹μ_c + log π_c, Σ = (1 − τ)S + τ·mean(diag S)·I, S the scatter within classes over n."""

    @property
    def has_covariance(self) -> bool:
        """Whether some class has two images, so that there is a scatter within classes."""
        return bool((self.counts > 1).any()) and bool((self.counts > 0).all())

    @torch.no_grad()
    def regroup_(self, groups: Groups) -> Self:
        """As for all sums; of a class that goes, only how its images vary around their mean stays: A ← A − n·μμᵀ."""
        kept = {column for group in groups for column in group}
        for column in set(range(self.classes)) - kept:
            total, number = self.cross[:, column], int(self.counts[column])
            if number:
                add_products(self.strips(), total.unsqueeze(0), -1 / number)
                self.total -= total
        return super().regroup_(groups)

    @torch.no_grad()
    def solve(self, shrinkage: float | None = None, priors: bool = True) -> Linear:
        """The discriminant functions, in float64.

        Args:
            shrinkage: τ; None takes the oracle approximating shrinkage.
            priors: whether classes weigh as often as they came; False takes them as equally likely.
        """
        if shrinkage is not None and not 0 <= shrinkage <= 1:
            raise ConfigError(f"shrinkage lies in 0..1; got {shrinkage}")
        if self.classes == 0 or int(self.counts.min()) == 0:
            raise DataError("every class needs one image at least before its mean is known: add images first")
        number = int(self.images)  # with images of classes that are gone: they still vary within their class
        counts = self.counts.double()
        matrix = strips(self.gram.to(torch.float64, copy=True), self.width)
        add_products(matrix, (self.cross / counts.sqrt()).mT, -1)
        for strip in matrix:
            strip /= number
        scale = float(diagonal(matrix).mean())
        if not scale > 0:
            raise DataError("no class has two different images, so there is no covariance within classes: add images")
        if shrinkage is None:
            shrinkage = oas_shrinkage(scale * self.width, square_norm(matrix), self.width, number)
        for strip in matrix:
            strip *= 1 - shrinkage
        add_diagonal(matrix, torch.tensor(shrinkage * scale))
        if not factorise(matrix):
            raise NumericalError("the covariance within classes has no inverse: raise the shrinkage or add images")
        means = self.cross / counts
        weight = solve_factorised(matrix, means)
        bias = -(means * weight).sum(0) / 2
        if priors:
            bias += (counts / counts.sum()).log()
        return Linear(weight.float().contiguous(), bias.float())
