"""Ridge regression on one-hot labels, and linear discriminant analysis, solved from the sums.

Both solve one system per set of sums. ``scale`` are (width,) factors d > 0 that weigh the features: the solution for
x·d, as a map of x itself, so that the same sums serve any weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
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
    multiply,
    solve_factorised,
    solve_lower,
    square_norm,
)
from adagauss.core.linalg import oas_shrinkage
from adagauss.errors import ConfigError, DataError, NumericalError

REFINEMENTS = 10
TOLERANCE = 1e-6
"""Relative size of a correction after which a solution is good enough."""
CONSTANT = 1e-12
"""What rounding leaves of the variance of features that never move, relative to their mean square."""
LEAST_FREEDOM = 1e-5
"""Of what an image does not decide about its own score: rounding must not make it nothing or negative."""
LEAST_SHARE = 1e-9
"""Keeps what remains of a covariance without an image invertible in the presence of rounding."""
ALONE = "no class has two different images, so the covariance within classes is unknown: add images"


@dataclass(frozen=True)
class _System:
    """M·V = R with M = share·(A − PᵀP) + diag(shift), R = ``right`` and P the rows of ``products``."""

    sums: MomentSums
    products: Tensor
    share: float
    shift: Tensor
    right: Tensor

    def solve(self) -> Tensor:
        """V in float64, by one Cholesky factorisation.

        The factor is float32, half the time and memory of float64; its solution is refined against the float64 sums, by
        V ← V + U⁻¹U⁻ᵀ(R − MV). Where that factor does not exist, or refining does not end, a float64 factor takes over.
        """
        factor = self._factor(torch.float32)
        if factor is not None:
            solution = solve_factorised(factor, self.right.float()).double()
            for _ in range(REFINEMENTS):
                product = multiply(self.sums.strips(), solution) - self.products.mT @ (self.products @ solution)
                error = self.right - self.share * product - self.shift.unsqueeze(1) * solution
                correction = solve_factorised(factor, error.float()).double()
                solution += correction
                if float(correction.norm()) <= TOLERANCE * float(solution.norm()):
                    return solution
        return solve_factorised(self._exact_factor(), self.right)

    def some_factor(self) -> list[Tensor]:
        """Strips of U with UᵀU = M: in float32, which is enough for comparing, or where that fails in float64."""
        return self._factor(torch.float32) or self._exact_factor()

    def _exact_factor(self) -> list[Tensor]:
        factor = self._factor(torch.float64)
        if factor is None:
            raise NumericalError("the sums are not positive definite: raise strength and shrinkage, or add images")
        return factor

    def _factor(self, dtype: torch.dtype) -> list[Tensor] | None:
        matrix = _without_products(self.sums, self.products)
        for index, strip in enumerate(matrix):
            matrix[index] = strip.mul_(self.share).to(dtype)
        add_diagonal(matrix, self.shift)
        return matrix if factorise(matrix) else None


def _without_products(sums: MomentSums, products: Tensor) -> list[Tensor]:
    """Strips of A − PᵀP in float64."""
    matrix = [strip.clone() for strip in sums.strips()]
    add_products(matrix, products, -1)
    return matrix


@dataclass(frozen=True)
class Ridge:
    """W = (A + ρI)⁻¹C with ρ = ν/n·mean(diag A): the regression of all one-hot labels on all n images ever seen.

    With an intercept A and C are about the means: A − n·mmᵀ and C − m·countsᵀ with m the mean feature, and the bias is
    counts/n − mW. ρ stays what it is while A grows, and the best ν hardly moves between tasks.

    Args:
        strength: ν, a number of images. A weight d of a feature is a penalty ρ/d² of its own.
        intercept: regress centred labels on centred features.
    """

    strength: float
    intercept: bool = False

    def __post_init__(self) -> None:
        if not self.strength > 0:
            raise ConfigError(f"the strength of a ridge must be positive; got {self.strength}")

    @torch.no_grad()
    def solve(self, sums: MomentSums, scale: Tensor | None = None) -> Linear:
        """The scores for all images in the sums."""
        system, mean = self._system(sums, scale)
        return self._linear(system.solve(), sums, mean)

    @torch.no_grad()
    def left_out(self, sums: MomentSums, features: Tensor, targets: Tensor, scale: Tensor | None = None) -> Tensor:
        """(N, C) scores of images in the sums, each left out (leave-one-out), without solving again.

        y − (y − ŷ)/(1 − h), h = xM⁻¹xᵀ, ŷ the scores of x in the regression of everything. With an intercept x is
        centred, and 1/n is added to h. Every image's class must keep another image.
        """
        system, mean = self._system(sums, scale)
        factor = system.some_factor()
        half = solve_lower(factor, (features - mean.to(features)).mT.to(factor[0]))
        overlap = column_products(half, half)
        if self.intercept:
            overlap = overlap + 1 / float(sums.counts.sum())
        solution = solve_factorised(factor, system.right.to(factor[0]))
        fitted = self._linear(solution.double(), sums, mean)(features).double()
        labels = F.one_hot(targets.to(fitted.device), sums.classes).to(fitted)
        return labels - (labels - fitted) * (1 / (1 + LEAST_FREEDOM - overlap)).unsqueeze(1)

    def _system(self, sums: MomentSums, scale: Tensor | None) -> tuple[_System, Tensor]:
        """The normal equations, and the mean feature (zero without an intercept)."""
        number = int(sums.counts.sum())
        if number == 0:
            raise DataError("there is nothing to solve yet: add images first")
        mean = sums.total / number if self.intercept else torch.zeros_like(sums.total)
        squares = _factors(sums, scale).square()
        # A constant in the features must not increase the penalty where it has no effect.
        norms = diagonal(sums.strips())
        about = (norms - number * mean.square()).clamp_min(0)
        moving, whole = (float((square * squares).sum()) / sums.features for square in (about, norms))
        if not whole > 0:
            raise DataError("all features are zero, so nothing can be told apart: check what they come from")
        # Identical images, such as a single first one, have no variance.
        penalty = self.strength / max(1, int(sums.images)) * (moving if moving > CONSTANT * whole else whole)
        right = torch.addr(sums.cross, mean, sums.counts.double(), alpha=-1)
        return _System(sums, number**0.5 * mean.unsqueeze(0), 1.0, penalty / squares, right), mean

    def _linear(self, weight: Tensor, sums: MomentSums, mean: Tensor) -> Linear:
        bias = sums.counts.double() / float(sums.counts.sum()) - mean @ weight if self.intercept else 0 * weight[0]
        return Linear(weight.float().contiguous(), bias.float())


@dataclass(frozen=True)
class LDA:
    """Scores x·Σ⁻¹μ_c − ½μ_cᵀΣ⁻¹μ_c, Σ = (1 − τ)S + τ·mean(diag S)·I, S the scatter within classes over n.

    x and μ_c are taken about the mean of all images, which adds the same to the scores of all classes: large features
    would drown in rounding. All classes are equally likely, however many images they have.

    Args:
        shrinkage: τ; None takes the oracle approximating shrinkage.
    """

    shrinkage: float | None = None

    def __post_init__(self) -> None:
        if self.shrinkage is not None and not 0 <= self.shrinkage <= 1:
            raise ConfigError(f"shrinkage lies in 0..1; got {self.shrinkage}")

    @torch.no_grad()
    def solve(self, sums: MomentSums, scale: Tensor | None = None) -> Linear:
        """The scores for all images in the sums."""
        system, centre = self._system(sums, scale)
        weight = system.solve()
        bias = -(system.right * weight).sum(0) / 2 - centre @ weight
        return Linear(weight.float().contiguous(), bias.float())

    @torch.no_grad()
    def left_out(self, sums: MomentSums, features: Tensor, targets: Tensor, scale: Tensor | None = None) -> Tensor:
        """Leave-one-out scores by Woodbury's identity, at the shrinkage of everything; see `Ridge.left_out`.

        Without an image, with deviation d from the mean of its class of n_c images, the scatter within classes loses
        ddᵀ·n_c/(n_c − 1), and the mean of the class moves by −d/(n_c − 1). All scores follow from the products aᵀΣ⁻¹b
        of features, deviations and means.
        """
        system, centre = self._system(sums, scale)
        factor = system.some_factor()
        targets = targets.to(centre.device)
        half_points = solve_lower(factor, (features.double() - centre).mT.to(factor[0]))
        half_means = solve_lower(factor, system.right.to(factor[0]))
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

        freedom = (1 - 1 / (rest + 1)) / max(system.share, 1e-300) - column_products(away, away)
        freedom = freedom + LEAST_SHARE * freedom
        inner = means_d * (1 / freedom).unsqueeze(1)
        linear = means_x + column_products(half_points, away).unsqueeze(1) * inner
        square: Tensor = means_m + means_d * inner
        return linear - square / 2

    def _system(self, sums: MomentSums, scale: Tensor | None) -> tuple[_System, Tensor]:
        """Σ·V = (means of the classes about the mean of all images), and that mean."""
        if sums.classes == 0 or int(sums.counts.min()) == 0:
            raise DataError("every class needs one image at least before its mean is known: add images first")
        number, counts = int(sums.images), sums.counts.double()
        if number <= sums.classes:
            raise DataError(ALONE)  # what rounding left of removed images must not pass for a covariance
        factors = _factors(sums, scale)
        products = (sums.cross / counts.sqrt()).mT
        size, whole = (
            float((values * factors.square()).sum()) / sums.features
            for values in (sums.variance_within(), sums.mean_square())
        )
        if not size > VARIANCE_ROUNDING * whole:
            raise DataError(ALONE)
        shrinkage = self.shrinkage
        if shrinkage is None:
            square = square_norm(_without_products(sums, products), factors) / number**2
            shrinkage = oas_shrinkage(size * sums.features, square, sums.features, number)
        centre = sums.total / counts.sum()
        means = sums.cross / counts - centre.unsqueeze(1)
        return _System(sums, products, (1 - shrinkage) / number, shrinkage * size / factors.square(), means), centre


def _factors(sums: MomentSums, scale: Tensor | None) -> Tensor:
    """(width,) factors in float64; ones where none are given."""
    return torch.ones_like(sums.total) if scale is None else scale.to(sums.total)
