"""Linear discriminant analysis with one covariance for all classes, solved from the sums."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adagauss.analytic.moments import (
    VARIANCE_ROUNDING,
    Linear,
    MomentSums,
    add_diagonal,
    add_products,
    column_products,
    diagonal,
    factorise,
    factors_of,
    solve_factorised,
    solve_lower,
    square_norm,
)
from adagauss.core.linalg import oas_shrinkage
from adagauss.errors import ConfigError, DataError, NumericalError

LEAST_FREEDOM = 1e-9
"""Keeps what remains of a covariance without an image invertible in the presence of rounding."""
ALONE = "no class has two different images, so the covariance within classes is unknown: add images"


@dataclass(frozen=True)
class LDA:
    """Scores x·Σ⁻¹μ_c − ½μ_cᵀΣ⁻¹μ_c, Σ = (1 − τ)S + τ·mean(diag S)·I, S the scatter within classes over n.

    x and μ_c are taken about the mean of all images, which adds the same to the scores of all classes.

    All classes are equally likely, however many images they have.

    Args:
        shrinkage: τ; None takes the oracle approximating shrinkage.
    """

    shrinkage: float | None = None

    def rule(self, images: int) -> LDA:
        """The same whatever the number of images."""
        return self

    def __post_init__(self) -> None:
        if self.shrinkage is not None and not 0 <= self.shrinkage <= 1:
            raise ConfigError(f"shrinkage lies in 0..1; got {self.shrinkage}")

    @torch.no_grad()
    def solve(self, sums: MomentSums, scale: Tensor | None = None) -> Linear:
        """The discriminant functions, in float64."""
        spread = _Spread(sums, self.shrinkage, scale, torch.float64)
        weight = solve_factorised(spread.factor, spread.means)
        bias = -(spread.means * weight).sum(0) / 2
        weight = weight * spread.factors.unsqueeze(1)
        return Linear(weight.float().contiguous(), (bias - spread.centre @ weight).float())

    @torch.no_grad()
    def left_out(self, sums: MomentSums, features: Tensor, targets: Tensor, scale: Tensor | None = None) -> Tensor:
        """Leave-one-out scores by Woodbury's identity, at the shrinkage of everything.

        Without an image, with deviation d from the mean of its class of n_c images, the scatter within classes loses
        ddᵀ·n_c/(n_c − 1), and the mean of the class moves by −d/(n_c − 1). All scores follow from the products aᵀΣ⁻¹b
        of features, deviations and means.
        """
        spread = _Spread(sums, self.shrinkage, scale, torch.float32)
        targets = targets.to(spread.means.device)
        points = ((features.double() - spread.centre) * spread.factors).mT.to(spread.factor[0])
        half_points = solve_lower(spread.factor, points)
        half_means = solve_lower(spread.factor, spread.means.to(spread.factor[0]))
        own = half_means[:, targets]
        away = half_points - own
        rest = sums.counts[targets].double() - 1

        # The mean of an image's own class, without it: m' = m − d/(n_c − 1); the other means stay.
        moved = own - away / rest.to(away)
        means_x, means_d = ((half.mT @ half_means).double() for half in (half_points, away))
        means_m = half_means.double().square().sum(0).expand(len(targets), -1).clone()
        row = torch.arange(len(targets), device=targets.device)
        means_x[row, targets], means_d[row, targets] = column_products(half_points, moved), column_products(away, moved)
        means_m[row, targets] = moved.double().square().sum(0)

        share = (1 - spread.shrinkage) / int(sums.images)
        freedom = (1 - 1 / (rest + 1)) / max(share, 1e-300) - column_products(away, away)
        freedom = freedom + LEAST_FREEDOM * freedom
        inner = means_d * (1 / freedom).unsqueeze(1)
        linear = means_x + column_products(half_points, away).unsqueeze(1) * inner
        square: Tensor = means_m + means_d * inner
        return linear - square / 2


class _Spread:
    """The factorised covariance within classes of weighed features, and the means of the classes."""

    def __init__(self, sums: MomentSums, shrinkage: float | None, scale: Tensor | None, dtype: torch.dtype) -> None:
        if sums.classes == 0 or int(sums.counts.min()) == 0:
            raise DataError("every class needs one image at least before its mean is known: add images first")
        counts = sums.counts.double()
        self.factors = factors_of(sums, scale)
        # About the mean of all, which changes no difference between scores: large features would drown it in rounding.
        self.centre = sums.total / counts.sum()
        self.means = (sums.cross / counts - self.centre.unsqueeze(1)) * self.factors.unsqueeze(1)
        self.factor, self.shrinkage = self._shrunk(sums, shrinkage)
        # Strip by strip, in place of the float64 ones: there is memory for one matrix (`needed_bytes`), not for two.
        for index, strip in enumerate(self.factor):
            self.factor[index] = strip.to(dtype)
        if factorise(self.factor):
            return
        if dtype != torch.float64:
            self.factor, _ = self._shrunk(sums, self.shrinkage)
            if factorise(self.factor):
                return
        raise NumericalError("the covariance within classes has no inverse: raise the shrinkage or add images")

    def _shrunk(self, sums: MomentSums, shrinkage: float | None) -> tuple[list[Tensor], float]:
        """Strips of Σ = (1 − τ)S + τ·mean(diag S)·I in float64, and τ."""
        number = int(sums.images)
        if number <= sums.classes:
            raise DataError(ALONE)  # what rounding left of removed images must not pass for a covariance
        matrix = [strip.to(torch.float64, copy=True) for strip in sums.strips()]
        add_products(matrix, (sums.cross / sums.counts.double().sqrt()).mT, -1)
        start = 0
        for strip in matrix:
            strip *= torch.outer(self.factors[start : start + len(strip)] / number, self.factors[start:])
            start += len(strip)
        size = float(diagonal(matrix).sum()) / sums.features
        whole = float((sums.mean_square() * self.factors.square()).sum()) / sums.features
        if not size > VARIANCE_ROUNDING * whole:
            raise DataError(ALONE)
        if shrinkage is None:
            shrinkage = oas_shrinkage(size * sums.features, square_norm(matrix), sums.features, number)
        for strip in matrix:
            strip *= 1 - shrinkage
        add_diagonal(matrix, torch.tensor(shrinkage * size))
        return matrix, shrinkage
