"""ClassGaussians: only a mean, a covariance and a count are stored per class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import torch
from torch import Tensor

from adagauss import linalg
from adagauss.errors import ConfigError
from adagauss.gaussians.statistics import Statistics

Map = Callable[[Tensor], Tensor]

TRANSPORT_ROWS = 4096
"""Number of samples mapped at once: enough for efficient matrix products, few enough for the cache."""


class ClassGaussians(Statistics):
    """One Gaussian per class, estimated from a stream of features.

    The statistics of a class are the same, up to float64 rounding, whether its features are given in one call, in
    several calls in any order, or to several banks that are merged. A class of S features takes S + S(S+1)/2 numbers
    (``full``), 2S (``diagonal``), (2 + r)S (``low_rank``: r factors and a diagonal) or S (``none``: means only). Of
    ``low_rank``, which is for many classes, only the variances are independent of the order of calls: what goes beyond
    r factors is dropped as it comes. One covariance of all classes is in `SharedGaussians`; `new_bank` makes any kind.
    The statistics are buffers, saved and moved by torch; the labels are not, and who saves a bank must save them too.

    >>> bank = ClassGaussians.from_features(torch.randn(100, 4), ["cat"] * 60 + ["dog"] * 40)
    >>> bank.labels, bank.means.shape, bank.covariances.shape
    (['cat', 'dog'], torch.Size([2, 4]), torch.Size([2, 4, 4]))
    """

    def factors(self, jitter: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
        """(C, S, S) lower factors of Σ_c + εI, found in float64."""
        identity = torch.eye(self.size, dtype=torch.float64, device=self.means.device)
        return linalg.safe_cholesky(self.covariances + jitter * identity).factor.to(dtype)

    def mixed(self, weights: Tensor) -> Tensor:
        """(S, S): Σ_c w_c Σ_c, without the matrices of all classes in memory."""
        return self.form.total(self.packed, weights)

    @property
    def mean_covariance(self) -> Tensor:
        """(S, S): the mean of the covariances, every class with equal weight."""
        return self.mixed(torch.full_like(self.freedom, 1 / max(1, len(self))))

    @property
    def pooled(self) -> Tensor:
        """(S, S): the covariance within classes, Σ_c (n_c − 1)Σ_c / Σ_c (n_c − 1)."""
        return self.mixed(self.freedom / self.freedom.sum().clamp_min(1))

    @property
    def second_moments(self) -> Tensor:
        """(C, S, S) uncentred sums Σ_i f_i f_iᵀ over the features of each class: (n − 1)Σ + n·μμᵀ."""
        outer = self.means.unsqueeze(2) * self.means.unsqueeze(1)
        return self.freedom.view(-1, 1, 1) * self.covariances + self.counts.double().view(-1, 1, 1) * outer

    @property
    def second_moment(self) -> Tensor:
        """(S, S): the sum of `second_moments` over the classes."""
        return self.mixed(self.freedom) + (self.counts.double().unsqueeze(1) * self.means).T @ self.means

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """(C, number, S) draws μ_c + L_c ε in float64."""
        noise = torch.randn(len(self), number, self.size, generator=generator, dtype=torch.float64)
        if not len(self):
            return noise.to(self.means.device)
        factor = self.factors()
        return self.means.unsqueeze(1) + noise.to(factor.device) @ factor.mT

    def transport(
        self,
        mapping: Map,
        samples: int = 10_000,
        generator: torch.Generator | None = None,
        extra: Tensor | float = 0.0,
    ) -> Self:
        """Push every Gaussian through ``mapping`` by ``samples`` draws per class and re-estimate it (Algorithm 1).

        Classes are drawn, mapped and reduced together, block by block, in float32, with moments summed in float64:
        memory does not depend on ``samples``. ``extra`` is added to each covariance.
        """
        if samples < 2:
            raise ConfigError(f"{samples} samples have no covariance: draw at least two per class, better thousands")
        if not len(self):
            return self.copy()
        means: list[Tensor] = []

        def matrices() -> Iterator[Tensor]:
            for some in self.blocks():
                moved, covariances = transported(some.means, some.factors(), mapping, samples, generator)
                means.append(moved)
                yield linalg.symmetrise(covariances) + extra

        packed = self._repacked(matrices())
        return self._like(list(self.labels), self.counts.clone(), torch.cat(means), packed)

    def transport_affine(self, affine: linalg.Affine, extra: Tensor | float = 0.0) -> Self:
        """Transport under z ↦ zW + b: μW + b and WᵀΣW + ``extra``, exact for full covariances.

        Other forms keep of WᵀΣW what they can express: its variances, always.
        """
        means = affine(self.means)
        if self.covariance == "none" or not len(self):
            return self.with_statistics(means, None)
        weight = affine.weight
        moved = (linalg.symmetrise(weight.T @ some.covariances @ weight) + extra for some in self.blocks())
        return self._like(list(self.labels), self.counts.clone(), means.double(), self._repacked(moved))

    def squared_mahalanobis(self, points: Tensor) -> Tensor:
        """(B, C) values of (x − μ_c)ᵀ Σ_c⁻¹ (x − μ_c), in float64."""
        return self._distances(points)[0]

    def log_prob(self, points: Tensor) -> Tensor:
        """(B, C) log-densities log N(x; μ_c, Σ_c), in float64."""
        distances, log_det = self._distances(points)
        constant = self.size * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
        return -(distances + log_det + constant) / 2

    def _distances(self, points: Tensor) -> tuple[Tensor, Tensor]:
        whitening = linalg.whiten(self.means, self.covariances, torch.float64)
        distances = linalg.by_rows(lambda some: linalg.squared_distances(some, whitening), points.double())
        return distances, whitening.log_det

    def symmetric_kl(self, other: ClassGaussians) -> Tensor:
        """KL(N‖N*) + KL(N*‖N) per class, for the classes of this bank."""
        theirs = other.select(self.labels)
        return linalg.symmetric_kl(self.means, self.covariances, theirs.means, theirs.covariances)

    def mean_distance(self, other: ClassGaussians) -> Tensor:
        """‖μ_c − μ*_c‖₂ per class."""
        distance: Tensor = torch.linalg.vector_norm(self.means - other.select(self.labels).means, dim=1)
        return distance

    def covariance_distance(self, other: ClassGaussians) -> Tensor:
        """‖Σ_c − Σ*_c‖_F per class."""
        distance: Tensor = torch.linalg.matrix_norm(self.covariances - other.select(self.labels).covariances)
        return distance

    def ranks(self, tolerance: float = 1e-3, relative: bool = True) -> Tensor:
        """Rank of each covariance (see `linalg.ranks`)."""
        return linalg.ranks(self.covariances, tolerance, relative)

    def effective_ranks(self) -> Tensor:
        """Effective rank of each covariance."""
        return linalg.effective_ranks(self.covariances)

    def condition_numbers(self) -> Tensor:
        """Condition number of each covariance."""
        return linalg.condition_numbers(self.covariances)


def transported(
    means: Tensor, factors: Tensor, mapping: Map, samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Means and covariances of mapped draws of N(μ_c, L_c L_cᵀ)."""
    classes, size = means.shape
    means, factors = means.float(), factors.float()
    block = max(1, TRANSPORT_ROWS // classes)
    with torch.inference_mode():
        # Moments about the mapped means: blocks add up exactly, without a second pass.
        centres = mapping(means).double().unsqueeze(1)
        totals = torch.zeros_like(centres)
        scatters = torch.zeros_like(factors, dtype=torch.float64)
        for start in range(0, samples, block):
            shape = (classes, min(block, samples - start), size)
            noise = torch.randn(shape, generator=generator).to(factors.device)
            draws = torch.baddbmm(means.unsqueeze(1), noise, factors.mT)
            mapped = mapping(draws.flatten(0, 1)).view(shape).double() - centres
            totals += mapped.sum(1, keepdim=True)
            scatters.baddbmm_(mapped.mT, mapped)
        shifts = totals / samples
        covariances = (scatters - samples * shifts.mT @ shifts) / (samples - 1)
        centres = (centres + shifts).squeeze(1)
    return centres.clone(), covariances.clone()
