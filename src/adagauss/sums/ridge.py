"""Ridge regression on one-hot labels, solved from the sums."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.errors import ConfigError, DataError, NumericalError
from adagauss.sums.packed import add_diagonal, add_products, diagonal, factorise, multiply, solve_factorised, strips
from adagauss.sums.totals import FeatureSums

REFINEMENTS = 10
TOLERANCE = 1e-6
"""Relative size of a correction after which a solution is good enough."""
LEAST_FACTOR = 1e-4
"""Features weighed less than this are as good as left out."""


class Linear(NamedTuple):
    """Scores xW + b, one column per class."""

    weight: Tensor
    bias: Tensor

    def divided_by(self, temperature: float) -> Linear:
        """The same scores at a temperature."""
        return Linear(self.weight / temperature, self.bias / temperature)

    def __call__(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias.to(features), features, self.weight.to(features))


class RidgeSums(FeatureSums):
    """W = (A + ρI)⁻¹C with ρ = λ·mean(diag A): the regression of all one-hot labels on all features ever seen."""

    @torch.no_grad()
    def solve(
        self, strength: float, intercept: bool = False, refine: bool = True, scale: Tensor | None = None
    ) -> Linear:
        """The regression with λ = ``strength``, by one Cholesky factorisation.

        The factor is float32, half the time and memory of float64; its solution is refined against the float64 sums.
        Where that factor does not exist, or refining does not end, a float64 factor takes over.

        Args:
            strength: λ, in units of the mean diagonal of A.
            intercept: regress centred labels on centred features: A − n·mmᵀ and C − m·countsᵀ with m the mean feature,
                and b = (counts/n) − mW.
            refine: False leaves the float32 solution as it is, which is enough for comparing strengths.
            scale: (width,) factors d ≥ 0 that weigh the features: the regression on x·d, as a map of x itself. It is
                the same as a penalty ρ/d² for each feature, so the same sums serve any weights.
        """
        if not strength > 0:
            raise ConfigError(f"the strength of a ridge must be positive; got {strength}")
        number = int(self.images)
        if number == 0:
            raise DataError("there is nothing to solve yet: add images first")
        factors = torch.ones_like(self.total) if scale is None else scale.to(self.total).clamp_min(LEAST_FACTOR)
        ridge = strength * float((diagonal(self.strips()).double() * factors.square()).mean())
        if not ridge > 0:
            raise DataError("all features are zero, so nothing can be told apart: check what the features come from")
        shift = ridge / factors.square()
        mean = self.total / number if intercept else torch.zeros_like(self.total)
        right = torch.addr(self.cross, mean, self.counts.double(), alpha=-1)
        weight = self._refined(mean, right, shift, refine)
        if weight is None:
            factor = self._factor(mean, shift, torch.float64)
            if factor is None:
                raise NumericalError("the sums are not positive definite: raise the strength of the ridge")
            weight = solve_factorised(factor, right)
        bias = self.counts.double() / number - mean @ weight if intercept else weight.new_zeros(self.classes)
        return Linear(weight.float().contiguous(), bias.float())

    def _factor(self, mean: Tensor, shift: Tensor, dtype: torch.dtype) -> list[Tensor] | None:
        """Strips of U with UᵀU = A − n·mmᵀ + diag(ρ)."""
        matrix = strips(self.gram.to(dtype, copy=True), self.width)
        add_products(matrix, mean.to(dtype).unsqueeze(0), -float(self.images))
        add_diagonal(matrix, shift)
        return matrix if factorise(matrix) else None

    def _refined(self, mean: Tensor, right: Tensor, shift: Tensor, refine: bool) -> Tensor | None:
        """The solution by a float32 factor and steps W ← W + U⁻¹U⁻ᵀ(C − (A + diag ρ)W); None where they do not end."""
        factor = self._factor(mean, shift, torch.float32)
        if factor is None:
            return None
        weight = solve_factorised(factor, right.float()).double()
        if not refine:
            return weight
        for _ in range(REFINEMENTS):
            product = multiply(self.strips(), weight.to(self.gram.dtype)).double() + shift.unsqueeze(1) * weight
            product -= float(self.images) * torch.outer(mean, mean @ weight)
            correction = solve_factorised(factor, (right - product).float()).double()
            weight += correction
            if float(correction.norm()) <= TOLERANCE * float(weight.norm()):
                return weight
        return None
