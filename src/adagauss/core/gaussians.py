"""Class statistics: a count, a mean and a covariance per class."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from adagauss.core import linalg
from adagauss.core.state import State
from adagauss.errors import ConfigError, DataError

Label = Hashable
Map = Callable[[Tensor], Tensor]
CovarianceKind = Literal["full", "diagonal", "none"]
BLOCK_BYTES = 1 << 28
"""Memory for the S × S matrices of the classes that are processed at once."""
TRANSPORT_ROWS = 4096
"""Number of samples mapped at once: enough for efficient matrix products, few enough for the cache."""


class ClassGaussians(State):
    """One Gaussian per class, estimated from a stream of features.

    The statistics of a class are the same, up to float64 rounding, whether its features are given in one call, in
    several calls in any order, or to several banks that are merged. A class of S features takes S + S(S+1)/2 numbers
    (``full``: the lower triangle), 2S (``diagonal``: the variances) or S (``none``: means only). The statistics are
    buffers, saved and moved by torch; labels are saved separately.

    >>> bank = ClassGaussians.from_features(torch.randn(100, 4), ["cat"] * 60 + ["dog"] * 40)
    >>> bank.labels, bank.means.shape, bank.covariances.shape
    (['cat', 'dog'], torch.Size([2, 4]), torch.Size([2, 4, 4]))
    """

    dims: ClassVar[Mapping[str, str]] = {"counts": "c", "means": "cs", "packed": "ck"}
    counts: Tensor
    means: Tensor
    packed: Tensor

    def __init__(self, size: int, covariance: CovarianceKind = "full", device: torch.device | str = "cpu") -> None:
        widths = {"full": linalg.packed_size(size), "diagonal": size, "none": 0}
        means = torch.zeros(0, size, dtype=torch.float64, device=device)
        counts = torch.zeros(0, dtype=torch.long, device=device)
        super().__init__(counts=counts, means=means, packed=means.new_zeros(0, widths[covariance]))
        self.size = size
        self.covariance: CovarianceKind = covariance
        self.labels: list[Label] = []

    def pack(self, matrices: Tensor) -> Tensor:
        """(..., S, S) covariances as the (..., k) rows that are stored."""
        if self.covariance == "full":
            return linalg.pack_triangle(matrices)
        return matrices.diagonal(dim1=-2, dim2=-1)[..., : self.packed.shape[1]]

    def unpack(self, packed: Tensor) -> Tensor:
        """The covariances of stored rows."""
        if self.covariance == "none":
            raise ConfigError("this memory stores only means; set memory.kind=gaussians to store covariances")
        return linalg.unpack_triangle(packed, self.size) if self.covariance == "full" else torch.diag_embed(packed)

    def scatter(self, centred: Tensor) -> Tensor:
        """The stored row of XᵀX, from (N, S) rows X."""
        if self.covariance == "full":
            return linalg.pack_triangle(centred.T @ centred)
        return centred.square().sum(0)[: self.packed.shape[1]]

    @classmethod
    def from_features(cls, features: Tensor, labels: Iterable[Label], covariance: CovarianceKind = "full") -> Self:
        """Estimate from ``(N, S)`` features and one label per row."""
        bank = cls(features.shape[-1], covariance, features.device)
        bank.add(features, labels)
        return bank

    def __len__(self) -> int:
        return len(self.labels)

    def empty_like(self) -> Self:
        """A bank of this kind without classes."""
        return type(self)(self.size, self.covariance, self.means.device)

    def copy(self) -> Self:
        """A copy that can be changed without changing this bank."""
        return self._like(list(self.labels), self.counts.clone(), self.means.clone(), self.packed.clone())

    def add(self, features: Tensor, labels: Iterable[Label]) -> None:
        """Add more samples; statistics of known labels are merged (Chan's parallel update)."""
        names = [label.item() if hasattr(label, "item") else label for label in labels]
        if features.ndim != 2 or features.shape[1] != self.size:
            raise DataError(f"features must have shape (N, {self.size}); got {tuple(features.shape)}")
        if len(names) != len(features):
            raise DataError(f"{len(features)} features but {len(names)} labels: give one label per row")
        features = features.detach().to(self.means.device, torch.float64)
        if not bool(torch.isfinite(features).all()):
            bad = int((~torch.isfinite(features)).any(1).sum())
            raise DataError(f"{bad} of {len(features)} features hold NaN or infinite numbers")
        position = {label: index for index, label in enumerate(dict.fromkeys(names))}
        targets = torch.tensor([position[label] for label in names], dtype=torch.long)
        order = torch.argsort(targets, stable=True).to(features.device)
        counts = torch.bincount(targets, minlength=len(position))
        means, scatters = [], []
        for rows in torch.split(features[order], counts.tolist()):
            means.append(rows.mean(0))
            scatters.append(self.scatter(rows - means[-1]))
        if means:
            self._merge(list(position), counts.to(self.counts.device), torch.stack(means), torch.stack(scatters))

    def check(self) -> None:
        """Raise if labels and statistics do not match, or if the statistics are impossible."""
        number = len(self.labels)
        shapes = (tuple(self.counts.shape), tuple(self.means.shape), tuple(self.packed.shape))
        wanted = ((number,), (number, self.size), (number, type(self)(self.size, self.covariance).packed.shape[1]))
        if shapes != wanted or len(set(self.labels)) != number:
            raise DataError(f"{number} classes of {self.size} features do not match statistics of shapes {shapes}")
        super().check()
        self.require((self.counts >= 1) & (self.counts < 2**48), "a class has an image count below 1 or above 2^48")
        for label, row in zip(self.labels, self.packed, strict=True):  # one by one: a factor is as large as its matrix
            valid = linalg.is_covariance(self.unpack(row)) if self.covariance == "full" else (row >= 0).all()
            self.require(valid, f"the covariance of {label!r} is not positive semi-definite")

    def merge(self, other: ClassGaussians) -> None:
        """Add the statistics of another bank, e.g. of another worker."""
        if (other.size, other.covariance) != (self.size, self.covariance):
            raise ConfigError(
                f"banks differ: {self.size} features with {self.covariance} covariance here, "
                f"{other.size} with {other.covariance} there"
            )
        self._merge(other.labels, other.counts, other.means, other.packed * other.freedom.unsqueeze(1))

    def select(self, labels: Sequence[Label]) -> Self:
        """A bank of some classes, in the given order."""
        position = {label: index for index, label in enumerate(self.labels)}
        missing = [label for label in labels if label not in position]
        if missing:
            raise DataError(f"class {missing[0]!r} is not in memory, which has {len(self)} classes")
        index = torch.tensor([position[label] for label in labels], dtype=torch.long, device=self.means.device)
        return self._like(list(labels), self.counts[index], self.means[index], self.packed[index])

    def with_statistics(self, means: Tensor, covariances: Tensor | None) -> Self:
        """The same classes and counts with other means and (unpacked) covariances; None keeps the covariances."""
        packed = self.packed if covariances is None else self.pack(linalg.symmetrise(covariances.double()))
        return self._like(list(self.labels), self.counts.clone(), means.double().clone(), packed.clone())

    @property
    def freedom(self) -> Tensor:
        """(C,): n_c − 1, the weight of each covariance in a sum, in float64."""
        return (self.counts.double() - 1).clamp_min(0)

    @property
    def covariances(self) -> Tensor:
        """(C, S, S) covariance matrices, unbiased; an error if only means are stored."""
        return self.unpack(self.packed)

    def _like(self, labels: list[Label], counts: Tensor, means: Tensor, packed: Tensor) -> Self:
        bank = self.empty_like()
        bank.labels, bank.counts, bank.means, bank.packed = labels, counts, means, packed
        return bank

    def blocks(self) -> Iterator[Self]:
        """Banks of some classes each, few enough for their matrices to fit into `BLOCK_BYTES`."""
        step = max(1, BLOCK_BYTES // (8 * self.size**2))
        for start in range(0, len(self), step):
            yield self.select(self.labels[start : start + step])

    def _merge(self, labels: list[Label], counts: Tensor, means: Tensor, scatters: Tensor) -> None:
        """Chan's parallel update for known classes; new classes are appended."""
        position = {label: index for index, label in enumerate(self.labels)}
        new = [row for row, label in enumerate(labels) if label not in position]
        for row, label in enumerate(labels):
            if label not in position:
                continue
            index = position[label]
            known, count = int(self.counts[index]), int(counts[row])
            total = known + count
            delta = means[row] - self.means[index]
            between = self.scatter(delta.unsqueeze(0) * (known * count / total) ** 0.5)
            scatter = self.packed[index] * self.freedom[index] + scatters[row] + between
            self.means[index] += delta * (count / total)
            self.packed[index] = scatter * (1 / max(1, total - 1))
            self.counts[index] = total
        self.labels.extend(labels[row] for row in new)
        self.counts = torch.cat([self.counts, counts[new]])
        self.means = torch.cat([self.means, means[new]])
        weights = 1 / (counts[new].double() - 1).clamp_min(1)
        self.packed = torch.cat([self.packed, scatters[new] * weights.unsqueeze(1)])

    def factors(self, jitter: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
        """(C, S, S) lower factors of Σ_c + εI, found in float64."""
        identity = torch.eye(self.size, dtype=torch.float64, device=self.means.device)
        return linalg.safe_cholesky(self.covariances + jitter * identity).factor.to(dtype)

    def mixed(self, weights: Tensor) -> Tensor:
        """(S, S): Σ_c w_c Σ_c, without the matrices of all classes in memory."""
        return self.unpack((weights.unsqueeze(1) * self.packed).sum(0))

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
        means, packed = [], []
        with torch.no_grad():
            for some in self.blocks():
                mean, factors = some.means.float().unsqueeze(1), some.factors(dtype=torch.float32)
                # Moments about the mapped means: batches add up exactly, without a second pass.
                centres = mapping(mean.squeeze(1)).double().unsqueeze(1)
                totals, scatters = torch.zeros_like(centres), torch.zeros_like(factors, dtype=torch.float64)
                for start in range(0, samples, rows := max(1, TRANSPORT_ROWS // len(some))):
                    shape = (len(some), min(rows, samples - start), self.size)
                    noise = torch.randn(shape, generator=generator).to(factors.device)
                    draws = torch.baddbmm(mean, noise, factors.mT).flatten(0, 1)
                    mapped = mapping(draws).view(shape).double() - centres
                    totals += mapped.sum(1, keepdim=True)
                    scatters.baddbmm_(mapped.mT, mapped)
                shifts = totals / samples
                covariances = (scatters - samples * shifts.mT @ shifts) / (samples - 1)
                means.append((centres + shifts).squeeze(1))
                packed.append(self.pack(linalg.symmetrise(covariances) + extra))
        return self._like(list(self.labels), self.counts.clone(), torch.cat(means), torch.cat(packed))

    def transport_affine(self, affine: linalg.Affine, extra: Tensor | float = 0.0) -> Self:
        """Transport under z ↦ zW + b: μW + b and WᵀΣW + ``extra``, of which ``diagonal`` keeps the variances."""
        means = affine(self.means)
        if self.covariance == "none" or not len(self):
            return self.with_statistics(means, None)
        weight = affine.weight
        packed = [self.pack(linalg.symmetrise(weight.T @ some.covariances @ weight) + extra) for some in self.blocks()]
        return self._like(list(self.labels), self.counts.clone(), means.double(), torch.cat(packed))
