"""SharedGaussians: one covariance of all classes, for thousands of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from adagauss import linalg
from adagauss.gaussians.bank import ClassGaussians
from adagauss.gaussians.forms import CovarianceKind
from adagauss.gaussians.statistics import Label, Statistics


class SharedGaussians(ClassGaussians):
    """The mean and count of each class and the covariance within classes, Σ = Σ_c (n_c − 1)Σ_c / Σ_c (n_c − 1).

    C·S + S(S+1)/2 numbers. Adding, merging and joining of classes are exact. A class that is removed leaves its part in
    Σ, where it cannot be told from the others; Σ then counts as that of the remaining images.

    >>> bank = SharedGaussians.from_features(torch.randn(100, 4), ["cat"] * 60 + ["dog"] * 40)
    >>> bank.means.shape, bank.packed.shape
    (torch.Size([2, 4]), torch.Size([1, 10]))
    """

    axes: ClassVar[Mapping[str, str]] = {"counts": "c", "means": "cs", "packed": "ok"}
    kinds: ClassVar[tuple[CovarianceKind, ...]] = ("shared",)
    keeps: ClassVar[str] = "the number of images and the mean of each class, and one covariance of all of them"

    common_rows: ClassVar[int] = 1

    @property
    def covariances(self) -> Tensor:
        """(C, S, S) views of the one covariance."""
        return self.common.expand(len(self), -1, -1)

    @property
    def common(self) -> Tensor:
        """(S, S): the one covariance."""
        return self.form.unpack(self.packed[0])

    def factors(self, jitter: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
        identity = torch.eye(self.size, dtype=torch.float64, device=self.means.device)
        factor = linalg.safe_cholesky(self.common + jitter * identity).factor.to(dtype)
        return factor.expand(len(self), -1, -1)

    def mixed(self, weights: Tensor) -> Tensor:
        return weights.sum() * self.common

    @property
    def pooled(self) -> Tensor:
        return self.common

    def transport_affine(self, affine: linalg.Affine, extra: Tensor | float = 0.0) -> Self:
        """Exact transport under z ↦ zW + b: μW + b and WᵀΣW + ``extra``."""
        moved = linalg.symmetrise(affine.weight.T @ self.common @ affine.weight) + extra
        means = affine(self.means).double()
        return self._like(list(self.labels), self.counts.clone(), means, self.form.pack(moved.unsqueeze(0)))

    def merge(self, other: Statistics) -> None:
        self._check_kind(other)
        scatter = self.form.times(other.packed, other.freedom.sum().unsqueeze(0))
        self._merge(other.labels, other.counts, other.means, scatter)

    def _merge(self, labels: list[Label], counts: Tensor, means: Tensor, scatters: Tensor) -> None:
        """As in the base; ``scatters`` are summed over classes, together with the spread between means of one class."""
        position = {label: index for index, label in enumerate(self.labels)}
        scatter = self.packed[0] * self.freedom.sum() + scatters.sum(0)
        known = [row for row, label in enumerate(labels) if label in position]
        if known:
            places = torch.tensor([position[labels[row]] for row in known], device=self.means.device)
            before, more = self.counts[places].double(), counts[known].double()
            delta = means[known] - self.means[places]
            scatter = scatter + self.form.scatter(delta * (before * more / (before + more)).sqrt().unsqueeze(1))
            # Not in place: a copy of the bank may share the tensors.
            self.means = self.means.index_add(0, places, delta * (more / (before + more)).unsqueeze(1))
            self.counts = self.counts.index_add(0, places, counts[known])
        new = [row for row, label in enumerate(labels) if label not in position]
        self.labels.extend(labels[row] for row in new)
        self.counts = torch.cat([self.counts, counts[new]])
        self.means = torch.cat([self.means, means[new]])
        self.packed = (scatter / self.freedom.sum().clamp_min(1)).unsqueeze(0)

    @property
    def _packed_rows(self) -> int:
        return 1

    def _packed_of(self, index: Tensor) -> Tensor:
        return self.packed.clone()

    def _repacked(self, blocks: Iterator[Tensor]) -> Tensor:
        """The mean of the matrices, each with the weight of its class."""
        start, total = 0, torch.zeros_like(self.packed[0])
        weights = self.freedom if bool((self.freedom > 0).any()) else torch.ones_like(self.freedom)
        weights = weights / weights.sum().clamp_min(1)
        for matrices in blocks:
            some = weights[start : start + len(matrices)]
            total += self.form.pack(torch.tensordot(some, matrices.to(some), 1))
            start += len(matrices)
        return total.unsqueeze(0)
