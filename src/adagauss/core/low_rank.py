"""Covariances of few factors and a diagonal, Σ = diag(d) + FᵀF with F of r rows: S·(r + 1) numbers instead of S².

All functions are pure and batched over the leading axes. The diagonal of what they approximate is kept exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.core.linalg import ROWS, safe_cholesky

LEAST_VARIANCE = 1e-4
"""Smallest entry of d that is divided by, relative to the mean variance: products in float32 lose no more than that."""


class Factored(NamedTuple):
    """diag(d) + FᵀF."""

    variances: Tensor
    """(..., S): d, never negative."""
    factors: Tensor
    """(..., r, S): F."""


def dense(matrix: Factored) -> Tensor:
    """(..., S, S): diag(d) + FᵀF."""
    return torch.diag_embed(matrix.variances) + matrix.factors.mT @ matrix.factors


def total_variances(matrix: Factored) -> Tensor:
    """(..., S): the diagonal, d_s + Σ_j F_js²."""
    return matrix.variances + matrix.factors.square().sum(-2)


def of_covariance(covariance: Tensor, rank: int) -> Factored:
    """The r largest eigenvalues less the mean of the others, F_j = √(λ_j − σ²)·u_jᵀ, and d = diag(Σ − FᵀF).

    This is probabilistic principal component analysis, σ² = mean of λ_{r+1} … λ_S, with the variance of each feature
    kept. It changes nothing if Σ is already of the form σ²I + FᵀF.
    """
    values, vectors = torch.linalg.eigh(covariance)
    return _leading(values, vectors.mT, covariance.diagonal(dim1=-2, dim2=-1), rank)


def of_rows(rows: Tensor, rank: int) -> Factored:
    """The same of XᵀX, from its (N, S) rows; with fewer rows than features, from the smaller XXᵀ."""
    number, size = rows.shape
    if number >= size:
        return of_covariance(rows.mT @ rows, rank)
    values, vectors = torch.linalg.eigh(rows @ rows.mT)
    # uᵀX has the length √λ: a unit vector is left of it. Rounding leaves noise where λ is zero.
    lengths = values.clamp_min(0).sqrt()
    possible = lengths > 1e-7 * lengths[-1:]
    units = torch.where(possible, 1 / lengths, 0.0).unsqueeze(1) * (vectors.mT @ rows)
    return _leading(torch.where(possible, values, 0.0), units, rows.square().sum(0), rank)


def _leading(values: Tensor, units: Tensor, diagonal: Tensor, rank: int) -> Factored:
    """The factors of the largest eigenvalues (given in ascending order, zeros left out) and what they leave."""
    size = diagonal.shape[-1]
    number = min(rank, values.shape[-1])
    largest, chosen = values[..., values.shape[-1] - number :], units[..., values.shape[-1] - number :, :]
    noise = (diagonal.sum(-1) - largest.sum(-1)).clamp_min(0) / max(1, size - number)
    factors = (largest - noise.unsqueeze(-1)).clamp_min(0).sqrt().unsqueeze(-1) * chosen
    factors = torch.nn.functional.pad(factors, (0, 0, rank - number, 0))
    return Factored((diagonal - factors.square().sum(-2)).clamp_min(0), factors)


def compressed(variances: Tensor, factors: Tensor, rank: int) -> Factored:
    """diag(d) + FᵀF with the r leading directions of FᵀF alone; the variance of the others goes to the diagonal.

    Exact if F has no more than r independent rows.
    """
    _, vectors = torch.linalg.eigh(factors @ factors.mT)
    turned = vectors.mT @ factors  # rows at right angles, the longest last
    kept, rest = turned[..., -rank:, :], turned[..., :-rank, :]
    return Factored(variances + rest.square().sum(-2), kept)


def added(one: Factored, other: Factored, delta: Tensor) -> Factored:
    """Σ₁ + Σ₂ + δδᵀ, with as many factors as ``one``."""
    factors = torch.cat([one.factors, other.factors, delta.unsqueeze(-2)], -2)
    return compressed(one.variances + other.variances, factors, one.factors.shape[-2])


def shrink_to_identity(matrix: Factored, amount: float) -> Factored:
    """Σ + γ·mean(diag Σ)·I."""
    mean = total_variances(matrix).mean(-1, keepdim=True)
    return Factored(matrix.variances + amount * mean, matrix.factors)


def correlation(matrix: Factored) -> Factored:
    """Σ_ij / √(Σ_ii Σ_jj); a constant feature (zero variance) gets unit diagonal and no correlations."""
    total = total_variances(matrix)
    inverse = torch.where(total > 0, total.rsqrt(), 0.0)
    variances = torch.where(total > 0, matrix.variances * inverse.square(), 1.0)
    return Factored(variances, matrix.factors * inverse.unsqueeze(-2))


class FactoredWhitening(NamedTuple):
    """What `squared_distances` needs of C classes; all points are taken relative to ``centre``."""

    centre: Tensor
    """(S,): m, the mean of the means."""
    precisions: Tensor
    """(C, S): 1/d."""
    lines: Tensor
    """(C, S): −2(μ_c − m)/d."""
    constants: Tensor
    """(C,): Σ_s (μ_c − m)²/d."""
    projections: Tensor
    """(C, r, S): P = L⁻¹F·diag(1/d), LLᵀ = I + F·diag(1/d)·Fᵀ."""
    offsets: Tensor
    """(C, r): P(μ_c − m)."""
    log_det: Tensor
    """(C,): log |Σ_c|."""


def whiten(
    means: Tensor, matrices: Factored, dtype: torch.dtype = torch.float32, block: int = 1024
) -> FactoredWhitening:
    """Factor each class in float64, kept in ``dtype``. Nothing of S × S numbers is made.

    Woodbury's identity: Σ⁻¹ = diag(1/d) − PᵀP. Matrix determinant lemma: |Σ| = |LLᵀ|·Π d.
    Entries of d below `LEAST_VARIANCE` of the mean variance are raised to it. Only ``block`` classes are in float64 at
    a time.
    """
    centre = means.double().mean(0)
    found = []
    for rows in torch.split(torch.arange(max(1, len(means))), block):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        some = Factored(matrices.variances[part], matrices.factors[part])
        found.append([tensor.to(dtype) for tensor in _whitened(means[part].double() - centre, some)])
    return FactoredWhitening(centre.to(dtype), *(torch.cat(parts) for parts in zip(*found, strict=True)))


def _whitened(away: Tensor, matrices: Factored) -> tuple[Tensor, ...]:
    """The fields of `FactoredWhitening` but the centre, for means relative to it."""
    variances, factors = floored(matrices)
    scaled = factors / variances.unsqueeze(-2)
    identity = torch.eye(factors.shape[-2], dtype=factors.dtype, device=factors.device)
    lower = safe_cholesky(identity + scaled @ factors.mT).factor
    projections = torch.linalg.solve_triangular(lower, scaled, upper=False)
    offsets = (projections @ away.unsqueeze(-1)).squeeze(-1)
    log_det = variances.log().sum(-1) + 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    constants = (away.square() / variances).sum(-1)
    return 1 / variances, -2 * away / variances, constants, projections, offsets, log_det


def floored(matrix: Factored) -> Factored:
    """The matrix with no entry of d below `LEAST_VARIANCE` of the mean variance, or of one if that is zero."""
    scale = total_variances(matrix).mean(-1, keepdim=True)
    least = LEAST_VARIANCE * torch.where(scale > 0, scale, torch.ones_like(scale))
    return Factored(torch.maximum(matrix.variances, least), matrix.factors)


def squared_distances(points: Tensor, whitening: FactoredWhitening, block_bytes: int = 1 << 24) -> Tensor:
    """(B, C) values of (x − μ_c)ᵀΣ_c⁻¹(x − μ_c) = Σ_s (x − μ_c)²/d − ‖P(x − μ_c)‖².

    r + 2 products of a linear head, in blocks of classes that bound the memory for `ROWS` points.
    """
    centre, precisions, lines, constants, projections, offsets, _ = whitening
    classes, rank, size = projections.shape
    points = points.to(centre) - centre
    whole = torch.addmm(constants, points.square(), precisions.T)
    whole = torch.addmm(whole, points, lines.T)
    block = max(1, block_bytes // (ROWS * max(1, rank) * centre.element_size()))
    explained = []
    for start in range(0, max(1, classes), block):
        some = projections[start : start + block]
        seen = torch.addmm(-offsets[start : start + block].reshape(1, -1), points, some.reshape(-1, size).T)
        seen = seen.view(-1, some.shape[0], rank)
        explained.append(torch.linalg.vecdot(seen, seen))
    return (whole - torch.cat(explained, 1)).clamp_min(0)
