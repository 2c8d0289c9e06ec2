"""Linear algebra of covariance matrices and of their eigenvalues: pure, batched functions.

Matrices are in the last two axes; any number of batch axes may come before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.errors import ConfigError, NumericalError

ABSOLUTE = 0.01
"""Tolerance of the published code: eigenvalues above it count, whatever their scale."""
RELATIVE = 1e-3
"""Tolerance relative to the largest eigenvalue."""


def spectrum(covariance: Tensor) -> Tensor:
    """Eigenvalues of symmetric matrices in float64, the largest first."""
    values: Tensor = torch.linalg.eigvalsh(symmetrise(covariance.double()))
    return values.flip(-1)


def absolute_rank(values: Tensor, tolerance: float = ABSOLUTE) -> Tensor:
    """Number of λ_i > ε: it depends on the scale of the features."""
    return (values > tolerance).sum(-1)


def relative_rank(values: Tensor, tolerance: float = RELATIVE) -> Tensor:
    """Number of λ_i > ε·λ_1: the same at every scale."""
    return (values > tolerance * values[..., :1]).sum(-1)


def effective_rank(values: Tensor) -> Tensor:
    """exp(−Σ p_i log p_i), p_i = λ_i / Σλ: S for equal eigenvalues, 1 for one direction, 0 for none."""
    share = _shares(values)
    entropy: Tensor = -torch.xlogy(share, share).sum(-1)
    return torch.where(share.sum(-1) > 0, entropy.exp(), torch.zeros_like(entropy))


def directions(values: Tensor, share: float = 0.95) -> Tensor:
    """Number of leading λ_i whose running sum stays strictly below ``share``·Σλ, as the published code counts."""
    return (_shares(values).cumsum(-1) < share).sum(-1)


def inverse_norm(values: Tensor) -> Tensor:
    """‖Σ⁻¹‖_F = √(Σ 1/λ_i²); infinite for a singular matrix."""
    return (1 / values.clamp_min(0)).square().sum(-1).sqrt()


def condition_number(values: Tensor) -> Tensor:
    """λ_1 / λ_S; infinite for a singular matrix."""
    smallest: Tensor = values[..., -1].clamp_min(0)
    return torch.where(smallest > 0, values[..., 0] / smallest, torch.full_like(smallest, torch.inf))


def _shares(values: Tensor) -> Tensor:
    """λ_i / Σλ; zeros for the zero matrix."""
    positive = values.clamp_min(0)
    total = positive.sum(-1, keepdim=True)
    return positive / torch.where(total > 0, total, torch.ones_like(total))


JITTER_STEPS = 12


class SafeCholesky(NamedTuple):
    """A lower factor and the value that was added to each diagonal to get it (0 if none)."""

    factor: Tensor
    jitter: Tensor


def symmetrise(matrix: Tensor) -> Tensor:
    """(M + Mᵀ) / 2."""
    return (matrix + matrix.mT) / 2


def mean_diagonal(matrix: Tensor) -> Tensor:
    """tr(M) / S, the scale that jitter and shrinkage are relative to."""
    return matrix.diagonal(dim1=-2, dim2=-1).mean(-1)


def safe_cholesky(matrix: Tensor, floor: float = 1e-12) -> SafeCholesky:
    """Cholesky factor in float64 for every finite covariance, with the jitter that was needed.

    A matrix whose squared pivots all exceed ``floor`` times its mean diagonal is factored unchanged. Any other gets
    ``floor · 10ᵏ · mean diagonal`` added to its diagonal, with the smallest k = 0, 1, … that works; matrices of a batch
    are treated separately, and gradients flow through.
    """
    exact = symmetrise(matrix.double())
    if not bool(torch.isfinite(exact).all()):
        raise NumericalError(
            "a covariance holds NaN or infinite numbers: the features it comes from have diverged; "
            "lower the learning rate or clip gradients"
        )
    scale = mean_diagonal(exact).detach().abs()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    jitter = torch.zeros_like(scale)
    identity = torch.eye(exact.shape[-1], dtype=exact.dtype, device=exact.device)
    factor, info = torch.linalg.cholesky_ex(exact)
    failed = _failed(factor, info, floor * scale)
    for step in range(JITTER_STEPS):
        if not bool(failed.any()):
            return SafeCholesky(factor, jitter)
        jitter = torch.where(failed, floor * 10.0**step * scale, jitter)
        factor, info = torch.linalg.cholesky_ex(exact + jitter[..., None, None] * identity)
        failed = _failed(factor, info, 0.5 * floor * scale)
    if bool(failed.any()):
        raise NumericalError("a covariance is far from positive definite: no diagonal shift makes it factorable")
    return SafeCholesky(factor, jitter)


def training_cholesky(matrix: Tensor, floor: float) -> Tensor:
    """`safe_cholesky` of a sample covariance in a loss: no number is read back, so that a GPU need not be waited for.

    One jitter is enough for a positive semi-definite matrix. NaN stays NaN; the training loop reports it.
    """
    exact = symmetrise(matrix.double())
    scale = mean_diagonal(exact).detach().abs()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    factor, info = torch.linalg.cholesky_ex(exact.detach())
    jitter = torch.where(_failed(factor, info, floor * scale), floor * scale, 0.0)
    identity = torch.eye(exact.shape[-1], dtype=exact.dtype, device=exact.device)
    lower: Tensor = torch.linalg.cholesky_ex(exact + jitter[..., None, None] * identity).L
    return lower


def _failed(factor: Tensor, info: Tensor, smallest: Tensor) -> Tensor:
    pivots = factor.detach().diagonal(dim1=-2, dim2=-1).square().amin(-1)
    return (info != 0) | ~(pivots > smallest)


def packed_size(size: int) -> int:
    """Number of entries in a packed triangle: S(S+1)/2."""
    return size * (size + 1) // 2


def pack_triangle(matrix: Tensor) -> Tensor:
    """Lower triangles of symmetric matrices as vectors of S(S+1)/2 numbers."""
    rows, columns = torch.tril_indices(matrix.shape[-1], matrix.shape[-1], device=matrix.device)
    return matrix[..., rows, columns]


def unpack_triangle(packed: Tensor, size: int) -> Tensor:
    """The symmetric matrices whose lower triangles `pack_triangle` returned."""
    rows, columns = torch.tril_indices(size, size, device=packed.device)
    matrix = packed.new_zeros(*packed.shape[:-1], size, size)
    matrix[..., rows, columns] = packed
    matrix[..., columns, rows] = packed
    return matrix


def shrink_to_identity(covariance: Tensor, amount: float) -> Tensor:
    """Σ + γ·mean(diag Σ)·I."""
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return covariance + amount * mean_diagonal(covariance)[..., None, None] * identity


def shrink_off_diagonal(covariance: Tensor, amount: float) -> Tensor:
    """Σ + γ·V·(1 − I) with V the mean of the non-zero off-diagonal entries (FeCAM's second shrinkage)."""
    size = covariance.shape[-1]
    if size == 1:
        return covariance
    off = 1 - torch.eye(size, dtype=covariance.dtype, device=covariance.device)
    entries = covariance * off
    mean_off = entries.sum((-2, -1)) / (entries != 0).sum((-2, -1)).clamp_min(1)
    return covariance + amount * mean_off[..., None, None] * off


def summed_columns(matrix: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Columns Σ_{i in g} m_i, one for each group g; a group of one column is that column, bit for bit."""
    return torch.stack([matrix[..., list(group)].sum(-1) for group in groups], -1)


def tukey(points: Tensor, power: float) -> Tensor:
    """x^λ elementwise, which makes the skewed distribution of rectified features more like a Gaussian (FeCAM)."""
    if bool((points < 0).any()):
        raise ConfigError(
            "Tukey's transform takes roots, and some of these features are negative: leave out the linear bottleneck "
            "with backbone.features=null, or the transform with memory.tukey=null and classifier.tukey=null"
        )
    return points.pow(power)


def correlation(covariance: Tensor) -> Tensor:
    """Σ_ij / √(Σ_ii Σ_jj); a constant feature (zero variance) gets unit diagonal and no correlations."""
    deviation = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    inverse = torch.where(deviation > 0, 1 / deviation, torch.zeros_like(deviation))
    scaled = covariance * inverse[..., :, None] * inverse[..., None, :]
    constant = torch.diag_embed((deviation == 0).to(covariance.dtype))
    return scaled + constant


def symmetric_kl(mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor) -> Tensor:
    """KL(N‖N*) + KL(N*‖N) of two Gaussians; the log-determinants cancel:

    ½[tr(Σ*⁻¹Σ) + tr(Σ⁻¹Σ*) − 2S + δᵀ(Σ⁻¹ + Σ*⁻¹)δ], δ = μ − μ*.
    """
    factor = safe_cholesky(covariance).factor
    other = safe_cholesky(other_covariance).factor
    delta = (mean - other_mean).double().unsqueeze(-1)
    # tr(Σ*⁻¹Σ) = ‖L*⁻¹L‖²_F and δᵀΣ⁻¹δ = ‖L⁻¹δ‖²: no inverse is computed.
    trace = _solve(other, factor).square().sum((-2, -1)) + _solve(factor, other).square().sum((-2, -1))
    quadratic = _solve(factor, delta).square().sum((-2, -1)) + _solve(other, delta).square().sum((-2, -1))
    return (trace - 2 * mean.shape[-1] + quadratic) / 2


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve_triangular(lower, right, upper=False)
    return solution


class Whitening(NamedTuple):
    """Factors that turn squared Mahalanobis distances into one matrix product (see `squared_distances`)."""

    matrices: Tensor
    """(C, S, S): L_c⁻¹ of each class, Σ_c = L_c L_cᵀ."""
    offsets: Tensor
    """(C, S): L_c⁻¹ μ_c."""
    log_det: Tensor
    """(C,): log |Σ_c|."""


def whiten(means: Tensor, covariances: Tensor, dtype: torch.dtype = torch.float32) -> Whitening:
    """Factor each class once, in float64; the results are kept in ``dtype`` for scoring."""
    factor = safe_cholesky(covariances).factor
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    inverse = _solve(factor, identity)
    offsets = (inverse @ means.double().unsqueeze(-1)).squeeze(-1)
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return Whitening(inverse.to(dtype), offsets.to(dtype), log_det.to(dtype))


ROWS = 256
"""Number of points for which `squared_distances` sizes its blocks; callers with more points split them (`by_rows`)."""


def squared_distances(points: Tensor, whitening: Whitening, block_bytes: int = 1 << 24) -> Tensor:
    """(B, C) squared Mahalanobis distances ‖L_c⁻¹x − L_c⁻¹μ_c‖² of B points to C classes.

    All classes of a block are computed side by side in one (B, S) @ (S, c·S) product. Blocks bound the memory for
    `ROWS` points and do not depend on B, so that the function can be traced with a dynamic number of points; see
    `by_rows` for many points.
    """
    matrices, offsets, _ = whitening
    classes, size, _ = matrices.shape
    points = points.to(matrices.dtype)
    block = max(1, block_bytes // (ROWS * size * matrices.element_size()))
    distances = []
    for start in range(0, max(1, classes), block):
        some = matrices[start : start + block]
        white = torch.addmm(-offsets[start : start + block].reshape(1, -1), points, some.reshape(-1, size).T)
        white = white.view(-1, some.shape[0], size)
        distances.append(torch.linalg.vecdot(white, white))
    return torch.cat(distances, dim=1)


def by_rows(function: Callable[[Tensor], Tensor], points: Tensor, rows: int = ROWS) -> Tensor:
    """``function`` applied to all points, ``rows`` at a time, which bounds its memory."""
    return torch.cat([function(some) for some in torch.split(points, rows)])


def solve_ridge(gram: Tensor, right: Tensor, amount: float) -> Tensor:
    """(A + ρI)⁻¹C from the sums A = XᵀX and C = XᵀY."""
    shifted = gram.clone()
    shifted.diagonal().add_(amount)
    # Row-major, so that products with it round the same way before and after saving and loading.
    return torch.cholesky_solve(right, safe_cholesky(shifted).factor).contiguous()


class Affine(NamedTuple):
    """The map z ↦ zW + b on row vectors."""

    weight: Tensor
    bias: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        return points.to(self.weight.dtype) @ self.weight + self.bias


def affine_ridge(inputs: Tensor, targets: Tensor, amount: float) -> Affine:
    """Ridge regression with an intercept, the penalty relative to the inputs' mean variance.

    W = (Σ_x + ρ·mean(diag Σ_x)·I)⁻¹ C_xy and b = μ_y − μ_x W, with population covariances.
    """
    X, Y = inputs.double(), targets.double()
    mean_x, mean_y = X.mean(0), Y.mean(0)
    centred = X - mean_x
    covariance = centred.T @ centred / len(X)
    cross = centred.T @ (Y - mean_y) / len(X)
    weight = torch.cholesky_solve(cross, safe_cholesky(shrink_to_identity(covariance, amount)).factor)
    return Affine(weight, mean_y - mean_x @ weight)


def sample_covariance(features: Tensor) -> Tensor:
    """Unbiased covariance of the rows."""
    centred = features - features.mean(0, keepdim=True)
    return centred.T @ centred / max(1, len(features) - 1)


def is_covariance(matrix: Tensor, negative: float = 0.1) -> bool:
    """Whether no variance is below zero, and no direction has one below −``negative`` times their mean.

    Smaller negative ones are possible: shrinkage of the off-diagonal may leave some.
    """
    variances = matrix.diagonal()
    # The smallest number there is, for a class of equal images, whose covariance is zero.
    shift = negative * variances.mean() + torch.finfo(torch.float64).tiny
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return bool((variances >= 0).all()) and bool(torch.linalg.cholesky_ex(matrix + shift * identity).info == 0)


def oas_shrinkage(trace: float, square: float, width: int, number: int) -> float:
    """Chen et al.'s oracle approximating shrinkage of a covariance S from its trace and squared norm ‖S‖²_F.

    min(1, (a + μ²) / ((n + 1)(a − μ²/p))) with a = ‖S‖²/p² and μ = tr S/p.
    """
    mean, average = trace / width, square / width**2
    excess = (number + 1) * (average - mean**2 / width)
    return 1.0 if excess <= 0 else min(1.0, (average + mean**2) / excess)
