"""Ridge regression on one-hot labels, solved from the sums."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.analytic.moments import (
    Linear,
    MomentSums,
    add_diagonal,
    add_products,
    column_products,
    diagonal,
    factorise,
    factors_of,
    multiply,
    solve_factorised,
    solve_lower,
    strips,
)
from adagauss.errors import ConfigError, DataError, NumericalError

REFINEMENTS = 10
TOLERANCE = 1e-6
"""Relative size of a correction after which a solution is good enough."""
CONSTANT = 1e-12
"""What rounding leaves of the variance of features that never move, relative to their mean square."""
LEAST_FREEDOM = 1e-5
"""Of what an image does not decide about its own score: rounding must not make it nothing or negative."""


@dataclass(frozen=True)
class Ridge:
    """W = (A + ρI)⁻¹C with ρ = λ·mean(diag A): the regression of all one-hot labels on all features ever seen.

    With an intercept A and C are about the means: A − n·mmᵀ and C − m·countsᵀ with m the mean feature.

    Args:
        strength: λ, in units of the mean diagonal of A. A weight d of a feature is a penalty ρ/d² of its own.
        intercept: regress centred labels on centred features, and b = (counts/n) − mW.
    """

    strength: float
    intercept: bool = False

    def __post_init__(self) -> None:
        if not self.strength > 0:
            raise ConfigError(f"the strength of a ridge must be positive; got {self.strength}")

    @torch.no_grad()
    def solve(self, sums: MomentSums, scale: Tensor | None = None) -> Linear:
        """The regression, by one Cholesky factorisation.

        The factor is float32, half the time and memory of float64; its solution is refined against the float64 sums.
        Where that factor does not exist, or refining does not end, a float64 factor takes over.
        """
        system = _System(sums, self, scale)
        weight = system.refined()
        if weight is None:
            weight = solve_factorised(system.factor(torch.float64), system.right)
        return system.linear(weight)

    @torch.no_grad()
    def left_out(self, sums: MomentSums, features: Tensor, targets: Tensor, scale: Tensor | None = None) -> Tensor:
        """Leave-one-out scores without solving again: y − (y − ŷ)/(1 − h), h = xB⁻¹xᵀ.

        B is what is factorised, ŷ the scores of x in the regression of everything. With an intercept x is centred, and
        1/n is added to h.
        """
        system = _System(sums, self, scale)
        factor = system.some_factor()
        half = solve_lower(factor, (features - system.mean.to(features)).mT.to(factor[0]))
        overlap = column_products(half, half)
        if self.intercept:
            overlap = overlap + 1 / system.number
        fitted = system.linear(solve_factorised(factor, system.right.to(factor[0])))(features).double()
        labels = F.one_hot(targets.to(fitted.device), sums.classes).to(fitted)
        return labels - (labels - fitted) * (1 / (1 + LEAST_FREEDOM - overlap)).unsqueeze(1)


class _System:
    """The normal equations (A − n·mmᵀ + diag ρ)·W = C − m·countsᵀ of one regression."""

    def __init__(self, sums: MomentSums, rule: Ridge, scale: Tensor | None) -> None:
        self.number = int(sums.counts.sum())
        if self.number == 0:
            raise DataError("there is nothing to solve yet: add images first")
        self.mean = sums.total / self.number if rule.intercept else torch.zeros_like(sums.total)
        squares = factors_of(sums, scale).square()
        # A constant in the features must not increase the penalty where it has no effect.
        norms = diagonal(sums.strips()).double()
        about = (norms - self.number * self.mean.square()).clamp_min(0)
        moving, whole = (float((square * squares).sum()) / sums.features for square in (about, norms))
        if not whole > 0:
            raise DataError("all features are zero, so nothing can be told apart: check what they come from")
        # Identical images, such as a single first one, have no variance.
        ridge = rule.strength * (moving if moving > CONSTANT * whole else whole)
        self.sums = sums
        self.intercept = rule.intercept
        self.shift = ridge / squares
        self.right = torch.addr(sums.cross, self.mean, sums.counts.double(), alpha=-1)

    def linear(self, weight: Tensor) -> Linear:
        """The scores that a solution gives."""
        weight = weight.double()
        if self.intercept:
            bias = self.sums.counts.double() / self.number - self.mean @ weight
        else:
            bias = weight.new_zeros(self.sums.classes)
        return Linear(weight.float().contiguous(), bias.float())

    def some_factor(self) -> list[Tensor]:
        """A float32 factor, which is enough for comparing, or where it does not exist a float64 one."""
        return self._factor(torch.float32) or self.factor(torch.float64)

    def factor(self, dtype: torch.dtype) -> list[Tensor]:
        """Strips of U with UᵀU = A − n·mmᵀ + diag(ρ)."""
        factor = self._factor(dtype)
        if factor is None:
            raise NumericalError("the sums are not positive definite: raise the strength of the ridge")
        return factor

    def _factor(self, dtype: torch.dtype) -> list[Tensor] | None:
        matrix = strips(self.sums.gram.to(dtype, copy=True), self.sums.width)
        if self.intercept:
            add_products(matrix, self.mean.to(dtype).unsqueeze(0), -float(self.number))
        add_diagonal(matrix, self.shift)
        return matrix if factorise(matrix) else None

    def refined(self) -> Tensor | None:
        """The solution by a float32 factor and steps W ← W + U⁻¹U⁻ᵀ(C − (A + diag ρ)W); None where they do not end."""
        factor = self._factor(torch.float32)
        if factor is None:
            return None
        sums, weight = self.sums, solve_factorised(factor, self.right.float()).double()
        for _ in range(REFINEMENTS):
            product = multiply(sums.strips(), weight.to(sums.gram.dtype)).double() + self.shift.unsqueeze(1) * weight
            product -= self.number * torch.outer(self.mean, self.mean @ weight)
            correction = solve_factorised(factor, (self.right - product).float()).double()
            weight += correction
            if float(correction.norm()) <= TOLERANCE * float(weight.norm()):
                return weight
        return None
