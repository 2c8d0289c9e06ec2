"""ClassGaussians: only a mean, a covariance and a count are stored per class."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from adagauss import linalg
from adagauss.errors import ConfigError, DataError
from adagauss.state import Learned

Label = Hashable
CovarianceKind = Literal["full", "diagonal", "none"]
Map = Callable[[Tensor], Tensor]

TRANSPORT_ROWS = 4096
"""Number of samples mapped at once: enough for efficient matrix products, few enough for the cache."""


class ClassGaussians(Learned):
    """One Gaussian per class, estimated from a stream of features.

    The statistics of a class are the same, up to float64 rounding, whether its features are given in one call, in
    several calls in any order, or to several banks that are merged. A class of S features takes S + S(S+1)/2 numbers
    (``full``), 2S (``diagonal``) or S (``none``: means only). The statistics are buffers, saved and moved by torch; the
    labels are not, and the code that saves a bank must save them too.

    >>> bank = ClassGaussians.from_features(torch.randn(100, 4), ["cat"] * 60 + ["dog"] * 40)
    >>> bank.labels, bank.means.shape, bank.covariances.shape
    (['cat', 'dog'], torch.Size([2, 4]), torch.Size([2, 4, 4]))
    """

    axes: ClassVar[Mapping[str, str]] = {"counts": "c", "means": "cs", "packed": "ck"}
    keeps: ClassVar[str] = "the number of images, the mean and, if the memory has them, the covariance of each class"

    def __init__(self, size: int, covariance: CovarianceKind = "full", device: torch.device | str = "cpu") -> None:
        super().__init__()
        self.size = size
        self.covariance: CovarianceKind = covariance
        self.labels: list[Label] = []
        width = _packed_width(size, covariance)
        self.register_buffer("counts", torch.zeros(0, dtype=torch.long, device=device))
        self.register_buffer("means", torch.zeros(0, size, dtype=torch.float64, device=device))
        self.register_buffer("packed", torch.zeros(0, width, dtype=torch.float64, device=device))
        self.counts: Tensor
        self.means: Tensor
        self.packed: Tensor

    @classmethod
    def from_features(
        cls, features: Tensor, labels: Iterable[Label], covariance: CovarianceKind = "full"
    ) -> ClassGaussians:
        """Estimate from ``(N, S)`` features and one label per row."""
        bank = cls(features.shape[-1], covariance, features.device)
        bank.add(features, labels)
        return bank

    def __len__(self) -> int:
        return len(self.labels)

    def __contains__(self, label: object) -> bool:
        return label in self.labels

    def copy(self) -> ClassGaussians:
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
            scatters.append(self._pack_scatter(rows - means[-1]))
        if means:
            self._merge(list(position), counts.to(self.counts.device), torch.stack(means), torch.stack(scatters))

    def check(self) -> None:
        """Raise if labels and statistics do not match, or if the statistics are impossible."""
        width = _packed_width(self.size, self.covariance)
        number = len(self.labels)
        shapes = (tuple(self.counts.shape), tuple(self.means.shape), tuple(self.packed.shape))
        if shapes != ((number,), (number, self.size), (number, width)) or len(set(self.labels)) != number:
            raise DataError(f"{number} classes of {self.size} features do not match statistics of shapes {shapes}")
        super().check()
        self.require((self.counts >= 1) & (self.counts < 2**48), "a class has an image count below 1 or beyond belief")
        if self.covariance != "none":
            for label in self.labels:  # one by one: a factor of each is as large as the matrix
                matrix = self.select([label]).covariances[0]
                self.require(linalg.is_covariance(matrix), f"what is kept as the covariance of {label!r} is not one")

    def merge(self, other: ClassGaussians) -> None:
        """Add the statistics of another bank, e.g. of another worker."""
        if (other.size, other.covariance) != (self.size, self.covariance):
            raise ConfigError(
                f"banks differ: {self.size} features with {self.covariance} covariance here, "
                f"{other.size} with {other.covariance} there"
            )
        scatters = other.packed * (other.counts - 1).clamp_min(0).unsqueeze(1)
        self._merge(other.labels, other.counts, other.means, scatters)

    def remove(self, label: Label) -> None:
        """Remove a class."""
        keep = [other for other in self.labels if other != label]
        if len(keep) == len(self.labels):
            raise DataError(f"class {label!r} is not in memory, so it cannot be removed")
        chosen = self.select(keep)
        self.labels, self.counts, self.means, self.packed = keep, chosen.counts, chosen.means, chosen.packed

    def select(self, labels: Sequence[Label]) -> ClassGaussians:
        """A bank of some classes, in the given order."""
        position = {label: index for index, label in enumerate(self.labels)}
        missing = [label for label in labels if label not in position]
        if missing:
            raise DataError(f"class {missing[0]!r} is not in memory, which has {len(self)} classes")
        index = torch.tensor([position[label] for label in labels], dtype=torch.long, device=self.means.device)
        return self._like(list(labels), self.counts[index], self.means[index], self.packed[index])

    def with_statistics(self, means: Tensor, covariances: Tensor | None) -> ClassGaussians:
        """The same classes and counts with other means and (unpacked) covariances; None keeps the covariances."""
        packed = self.packed if covariances is None else self._pack(linalg.symmetrise(covariances.double()))
        return self._like(list(self.labels), self.counts.clone(), means.double().clone(), packed.clone())

    @property
    def covariances(self) -> Tensor:
        """(C, S, S) covariance matrices, unbiased; an error if only means are stored."""
        if self.covariance == "full":
            return linalg.unpack_triangle(self.packed, self.size)
        if self.covariance == "diagonal":
            return torch.diag_embed(self.packed)
        raise ConfigError("this memory stores only means; set memory.kind=gaussians to store covariances")

    @property
    def second_moments(self) -> Tensor:
        """(C, S, S) uncentred sums Σ_i f_i f_iᵀ over the features of each class: (n − 1)Σ + n·μμᵀ."""
        counts = self.counts.double().view(-1, 1, 1)
        outer = self.means.unsqueeze(2) * self.means.unsqueeze(1)
        return (counts - 1).clamp_min(0) * self.covariances + counts * outer

    @property
    def numbers_per_class(self) -> int:
        """Numbers stored per class: S + S(S+1)/2 for full covariances."""
        return self.size + self.packed.shape[1]

    def sample(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        """(C, number, S) draws μ_c + L_c ε in float64."""
        noise = torch.randn(len(self), number, self.size, generator=generator, dtype=torch.float64)
        if not len(self):
            return noise.to(self.means.device)
        factor = linalg.safe_cholesky(self.covariances).factor
        return self.means.unsqueeze(1) + noise.to(factor.device) @ factor.mT

    def transport(
        self, mapping: Map, samples: int = 10_000, generator: torch.Generator | None = None
    ) -> ClassGaussians:
        """Push every Gaussian through ``mapping`` by ``samples`` draws per class and re-estimate it (Algorithm 1).

        All classes are drawn, mapped and reduced together, block by block, in float32, with moments summed in
        float64: memory does not depend on ``samples``.
        """
        if samples < 2:
            raise ConfigError(f"{samples} samples have no covariance: draw at least two per class, better thousands")
        if not len(self):
            return self._like([], self.counts, self.means, self.packed)
        factors = linalg.safe_cholesky(self.covariances).factor.float()
        means = self.means.float()
        block = max(1, TRANSPORT_ROWS // len(self))
        with torch.inference_mode():
            # Moments about the mapped means: blocks add up exactly, without a second pass.
            centres = mapping(means).double().unsqueeze(1)
            totals = torch.zeros_like(centres)
            scatters = torch.zeros_like(factors, dtype=torch.float64)
            for start in range(0, samples, block):
                shape = (len(self), min(block, samples - start), self.size)
                noise = torch.randn(shape, generator=generator).to(factors.device)
                draws = torch.baddbmm(means.unsqueeze(1), noise, factors.mT)
                mapped = mapping(draws.flatten(0, 1)).view(shape).double() - centres
                totals += mapped.sum(1, keepdim=True)
                scatters.baddbmm_(mapped.mT, mapped)
            shifts = totals / samples
            covariances = (scatters - samples * shifts.mT @ shifts) / (samples - 1)
            centres = (centres + shifts).squeeze(1)
        return self.with_statistics(centres.clone(), covariances.clone())

    def transport_affine(self, affine: linalg.Affine) -> ClassGaussians:
        """Exact transport under z ↦ zW + b: μW + b and WᵀΣW."""
        means = affine(self.means)
        if self.covariance == "none":
            return self.with_statistics(means, None)
        weight = affine.weight
        return self.with_statistics(means, weight.T @ self.covariances @ weight)

    def squared_mahalanobis(self, points: Tensor) -> Tensor:
        """(B, C) values of (x − μ_c)ᵀ Σ_c⁻¹ (x − μ_c), in float64."""
        whitening = linalg.whiten(self.means, self.covariances, torch.float64)
        return linalg.by_rows(lambda some: linalg.squared_distances(some, whitening), points.double())

    def log_prob(self, points: Tensor) -> Tensor:
        """(B, C) log-densities log N(x; μ_c, Σ_c), in float64."""
        whitening = linalg.whiten(self.means, self.covariances, torch.float64)
        constant = self.size * torch.log(torch.tensor(2 * torch.pi, dtype=torch.float64))
        distances = linalg.by_rows(lambda some: linalg.squared_distances(some, whitening), points.double())
        return -(distances + whitening.log_det + constant) / 2

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

    @classmethod
    def from_state(
        cls, state: dict[str, Tensor], labels: Sequence[Label], covariance: CovarianceKind
    ) -> ClassGaussians:
        """The bank with this ``state_dict`` and these labels."""
        bank = cls(state["means"].shape[1], covariance, state["means"].device)
        bank.load_state_dict(state)
        bank.labels = list(labels)
        return bank

    def _like(self, labels: list[Label], counts: Tensor, means: Tensor, packed: Tensor) -> ClassGaussians:
        bank = ClassGaussians(self.size, self.covariance, self.means.device)
        bank.labels, bank.counts, bank.means, bank.packed = labels, counts, means, packed
        return bank

    def _pack(self, matrices: Tensor) -> Tensor:
        if self.covariance == "full":
            return linalg.pack_triangle(matrices)
        if self.covariance == "diagonal":
            return matrices.diagonal(dim1=-2, dim2=-1)
        return matrices.new_zeros(*matrices.shape[:-2], 0)

    def _pack_scatter(self, centred: Tensor) -> Tensor:
        if self.covariance == "full":
            return linalg.pack_triangle(centred.T @ centred)
        if self.covariance == "diagonal":
            return centred.square().sum(0)
        return centred.new_zeros(0)

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
            between = self._pack_scatter(delta.unsqueeze(0)) * (known * count / total)
            scatter = self.packed[index] * max(0, known - 1) + scatters[row] + between
            self.means[index] += delta * (count / total)
            self.packed[index] = scatter / max(1, total - 1)
            self.counts[index] = total
        self.labels.extend(labels[row] for row in new)
        self.counts = torch.cat([self.counts, counts[new]])
        self.means = torch.cat([self.means, means[new]])
        self.packed = torch.cat([self.packed, scatters[new] / (counts[new] - 1).clamp_min(1).unsqueeze(1)])


def _packed_width(size: int, covariance: CovarianceKind) -> int:
    """Numbers stored per covariance."""
    return {"full": linalg.packed_size(size), "diagonal": size, "none": 0}[covariance]
