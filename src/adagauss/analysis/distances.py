"""How far memorised Gaussians are from the real ones of the same classes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import spectrum, symmetric_kl

DISTANCES = ("mean", "covariance", "kl", "relative mean", "relative covariance")
"""‖μ − μ*‖₂, ‖Σ − Σ*‖_F and the symmetric KL divergence, as in the paper; and the first two at any scale."""
BLOCK_BYTES = 1 << 26
"""Covariances are unpacked so many bytes at a time: a thousand classes of 512 features would be gigabytes."""


def distances(memory: ClassGaussians, real: ClassGaussians, comparable: bool = True) -> Tensor:
    """(C, 5): the `DISTANCES` of each class of ``memory``, with * for the real statistics.

    ‖μ − μ*‖₂; ‖Σ − Σ*‖_F; KL(N‖N*) + KL(N*‖N); ‖μ − μ*‖₂ / √tr Σ*; ‖Σ − Σ*‖_F / ‖Σ*‖_F. NaN stands where the memory has
    no covariances, or not ``comparable`` ones, such as those of powers of features.
    """
    rows = []
    for labels in blocks(memory):
        mine, theirs = memory.select(labels), real.select(labels)
        matrices = theirs.covariances
        apart: Tensor = torch.linalg.vector_norm(mine.means - theirs.means, dim=1)
        spread = matrices.diagonal(dim1=1, dim2=2).sum(1).clamp_min(0).sqrt()
        unknown = torch.full_like(apart, torch.nan)
        wide = kl = unknown
        if comparable and memory.covariance != "none":
            own = mine.covariances
            wide, kl = torch.linalg.matrix_norm(own - matrices), symmetric_kl(mine.means, own, theirs.means, matrices)
        size: Tensor = torch.linalg.matrix_norm(matrices)
        rows.append(torch.stack([apart, wide, kl, apart / spread, wide / size], 1))
    return torch.cat(rows).cpu() if rows else torch.zeros(0, len(DISTANCES), dtype=torch.float64)


def class_spectra(bank: ClassGaussians) -> Tensor:
    """(C, S) eigenvalues of each covariance, the largest first."""
    rows = [spectrum(bank.select(labels).covariances) for labels in blocks(bank)]
    return torch.cat(rows).cpu() if rows else torch.zeros(0, bank.size, dtype=torch.float64)


def blocks(bank: ClassGaussians) -> Iterator[list[object]]:
    """The labels of a bank, as many at a time as `BLOCK_BYTES` allow."""
    step = max(1, BLOCK_BYTES // (8 * bank.size**2))
    for start in range(0, len(bank), step):
        yield list(bank.labels[start : start + step])
