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
    """Scores x·Σ⁻¹μ_c − ½μ_cᵀΣ⁻¹μ_c + log π_c, Σ = (1 − τ)S + τ·mean(diag S)·I, S the scatter within classes over n.

    x and μ_c are taken about the mean of all images, which adds the same to the scores of all classes.

    Args:
        shrinkage: τ; None takes the oracle approximating shrinkage.
        priors: whether classes weigh as often as they came; False takes them as equally likely.
    """

    shrinkage: float | None = None
    priors: bool = False

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
        bias = -(spread.means * weight).sum(0) / 2 + self._log_priors(sums)
        weight = weight * spread.factors.unsqueeze(1)
        return Linear(weight.float().contiguous(), (bias - spread.centre @ weight).float())

    @torch.no_grad()
    def left_out(self, sums: MomentSums, views: Tensor, targets: Tensor, scale: Tensor | None = None) -> Tensor:
        """Leave-one-out scores by Woodbury's identity, at the shrinkage of everything.

        Without the V views of an image, with deviations D from the mean of its class of n_c images, the scatter within
        classes loses DKDᵀ, K = I + 11ᵀ/(n_c − V), and the mean of the class moves by −D1/(n_c − V). All scores follow
        from the products aᵀΣ⁻¹b of views and means.
        """
        spread = _Spread(sums, self.shrinkage, scale, torch.float32)
        number, images = views.shape[:2]
        targets = targets.to(spread.means.device)
        points = ((views.double() - spread.centre) * spread.factors).flatten(0, 1).mT.to(spread.factor[0])
        half_points = solve_lower(spread.factor, points).view(-1, number, images)
        half_means = solve_lower(spread.factor, spread.means.to(spread.factor[0]))
        own = half_means[:, targets].unsqueeze(1)
        away = half_points - own
        rest = sums.counts[targets].double() - number

        # The mean of an image's own class, without it: m' = m − D1/(n_c − V); the other means stay.
        moved = own.squeeze(1) - away.sum(1) / rest.to(away)
        means_x = torch.einsum("svn,sc->nvc", half_points, half_means).double()
        means_d = torch.einsum("svn,sc->nvc", away, half_means).double()
        means_m = half_means.double().square().sum(0).expand(images, -1).clone()
        row = torch.arange(images, device=targets.device)
        means_x[row, :, targets] = torch.einsum("svn,sn->nv", half_points, moved).double()
        means_d[row, :, targets] = torch.einsum("svn,sn->nv", away, moved).double()
        means_m[row, targets] = moved.double().square().sum(0)

        within_d = torch.einsum("svn,swn->nvw", away, away).double()
        points_d = torch.einsum("svn,swn->nvw", half_points, away).double()
        eye = torch.eye(number, dtype=torch.float64, device=targets.device)
        share = (1 - spread.shrinkage) / int(sums.images)
        # (K·share)⁻¹ with K⁻¹ = I − 11ᵀ/n_c, since n_c = (n_c − V) + V.
        freedom = (eye - 1 / (rest + number).view(-1, 1, 1)) / max(share, 1e-300) - within_d
        freedom = freedom + LEAST_FREEDOM * freedom.diagonal(dim1=1, dim2=2).amax(1).view(-1, 1, 1) * eye
        inner = torch.linalg.solve(freedom, means_d)
        linear = means_x + points_d @ inner
        square: Tensor = means_m + (means_d * inner).sum(1)
        scores: Tensor = linear.mean(1) - square / 2
        if self.priors:
            counts = sums.counts.double().expand(images, -1).clone()
            counts[row, targets] -= number
            scores = scores + (counts / counts.sum(1, keepdim=True)).log()
        return scores

    def _log_priors(self, sums: MomentSums) -> Tensor:
        share = sums.counts.double() / sums.counts.sum()
        return share.log() if self.priors else torch.zeros_like(share)


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
