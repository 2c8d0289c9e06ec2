"""Ridge regression on one-hot labels, and linear discriminant analysis, solved from the sums.

Both solve one system per set of sums. ``scale`` are (width,) factors d > 0 that weigh the features: the solution for
x·d, as a map of x itself, so that the same sums serve any weights.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Keeps what remains of a covariance without a group invertible in the presence of rounding."""
Groups = Sequence[Tensor]
"""For each size k of a group, the (G, k) rows of images that are left out together; none: each image on its own."""
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
    def left_out(
        self, sums: MomentSums, features: Tensor, targets: Tensor, scale: Tensor | None = None, groups: Groups = ()
    ) -> Tensor:
        """(N, C) scores of images in the sums, each left out with its group, without solving again.

        Y − (I − H)⁻¹(Y − Ŷ), H = XM⁻¹Xᵀ, Ŷ the scores of a group X in the regression of everything. With an intercept
        X is centred, and 1/n is added to H. Every image's class must keep another group.
        """
        system, mean = self._system(sums, scale)
        factor = system.some_factor()
        half = solve_lower(factor, (features - mean.to(features)).mT.to(factor[0]))
        constant = 1 / float(sums.counts.sum()) if self.intercept else 0.0
        solution = solve_factorised(factor, system.right.to(factor[0]))
        fitted = self._linear(solution.double(), sums, mean)(features).double()
        labels = F.one_hot(targets.to(fitted.device), sums.classes).to(fitted)
        error = labels - fitted
        for rows in groups or [torch.arange(len(targets)).unsqueeze(1)]:
            freedom = -(column_products(half[:, rows], half[:, rows]) + constant)
            freedom.diagonal(dim1=1, dim2=2).add_(1 + LEAST_FREEDOM)
            error[rows] = torch.linalg.solve(freedom, error[rows])
        return labels - error

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
    def left_out(
        self, sums: MomentSums, features: Tensor, targets: Tensor, scale: Tensor | None = None, groups: Groups = ()
    ) -> Tensor:
        """Leave-group-out scores by Woodbury's identity, at the shrinkage of everything; see `Ridge.left_out`.

        Without k of n_c images, with deviations D from the mean of their class, the scatter within classes loses
        D(I + 11ᵀ/(n_c − k))Dᵀ, and the mean of the class moves by −D1/(n_c − k). All scores follow from the products
        aᵀΣ⁻¹b of features, deviations and means.
        """
        system, centre = self._system(sums, scale)
        factor = system.some_factor()
        targets = targets.to(centre.device)
        half_points = solve_lower(factor, (features.double() - centre).mT.to(factor[0]))
        half_means = solve_lower(factor, system.right.to(factor[0]))
        away = half_points - half_means[:, targets]
        squares, share = half_means.double().square().sum(0), max(system.share, 1e-300)
        scores = squares.new_empty(len(targets), sums.classes)
        for rows in groups or [torch.arange(len(targets)).unsqueeze(1)]:
            own, place = targets[rows[:, 0]], torch.arange(len(rows), device=rows.device)
            points, off, rest = half_points[:, rows], away[:, rows], sums.counts[own].double() - rows.shape[1]
            # The mean of the group's own class, without it; the other means stay.
            moved = (half_means[:, own] - off.sum(2) / rest.to(off)).unsqueeze(2)
            means_x, means_d = (torch.einsum("sgk,sc->gkc", half, half_means).double() for half in (points, off))
            means_m = squares.expand(len(rows), -1).clone()
            means_x[place, :, own] = column_products(points, moved).squeeze(2)
            means_d[place, :, own] = column_products(off, moved).squeeze(2)
            means_m[place, own] = moved.double().square().sum((0, 2))
            freedom = -(1 / (rest + rows.shape[1]).view(-1, 1, 1) / share + column_products(off, off))
            freedom.diagonal(dim1=1, dim2=2).add_((1 + LEAST_SHARE) / share)
            inner = torch.linalg.solve(freedom, means_d)
            linear = means_x + column_products(points, off) @ inner
            scores[rows] = linear - (means_m + (means_d * inner).sum(1)).unsqueeze(1) / 2
        return scores

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
