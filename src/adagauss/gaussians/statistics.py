"""Counts, means and covariances of classes as tables that grow: adding, merging, choosing."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from adagauss import linalg
from adagauss.errors import ConfigError, DataError
from adagauss.gaussians.forms import CovarianceKind, LowRank, form_of
from adagauss.state import Learned

Label = Hashable
BLOCK_BYTES = 1 << 28
"""Memory for the S × S matrices of the classes that are treated at once."""
RANK = 8
"""Factors of a covariance of few factors and a diagonal, unless said otherwise."""


class Statistics(Learned):
    """The count, the mean and, in some form, the covariance of each class, estimated from a stream of features."""

    axes: ClassVar[Mapping[str, str]] = {"counts": "c", "means": "cs", "packed": "ck"}
    kinds: ClassVar[tuple[CovarianceKind, ...]] = ("full", "diagonal", "low_rank", "none")
    """Kinds of covariance that this class can hold, the default first."""
    common_rows: ClassVar[int] = 0
    """Covariances that belong to all classes together, and are there before any class."""
    keeps: ClassVar[str] = "the number of images, the mean and, if the memory has them, the covariance of each class"

    def __init__(
        self,
        size: int,
        covariance: CovarianceKind | None = None,
        device: torch.device | str = "cpu",
        rank: int = RANK,
    ) -> None:
        super().__init__()
        self.size = size
        self.covariance: CovarianceKind = covariance or self.kinds[0]
        if self.covariance not in self.kinds:
            raise ConfigError(f"{type(self).__name__} cannot hold {covariance!r} covariances: use new_bank")
        self.form = form_of(size, self.covariance, rank)
        self.labels: list[Label] = []
        self.register_buffer("counts", torch.zeros(0, dtype=torch.long, device=device))
        self.register_buffer("means", torch.zeros(0, size, dtype=torch.float64, device=device))
        self.register_buffer(
            "packed", torch.zeros(self.common_rows, self.form.width, dtype=torch.float64, device=device)
        )
        self.counts: Tensor
        self.means: Tensor
        self.packed: Tensor

    @classmethod
    def from_features(cls, features: Tensor, labels: Iterable[Label], covariance: CovarianceKind | None = None) -> Self:
        """Estimate from ``(N, S)`` features and one label per row."""
        bank = cls(features.shape[-1], covariance, features.device)
        bank.add(features, labels)
        return bank

    def __len__(self) -> int:
        return len(self.labels)

    def __contains__(self, label: object) -> bool:
        return label in self.labels

    @property
    def rank(self) -> int:
        """Factors of each covariance, if it is made of few."""
        return self.form.rank if isinstance(self.form, LowRank) else RANK

    def emptied(self) -> Self:
        """A bank of this kind without classes."""
        return type(self)(self.size, self.covariance, self.means.device, self.rank)

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
            scatters.append(self.form.scatter(rows - means[-1]))
        if means:
            self._merge(list(position), counts.to(self.counts.device), torch.stack(means), torch.stack(scatters))

    def check(self) -> None:
        """Raise if labels and statistics do not match, or if the statistics are impossible."""
        number = len(self.labels)
        shapes = (tuple(self.counts.shape), tuple(self.means.shape), tuple(self.packed.shape))
        wanted = ((number,), (number, self.size), (self._packed_rows, self.form.width))
        if shapes != wanted or len(set(self.labels)) != number:
            raise DataError(f"{number} classes of {self.size} features do not match statistics of shapes {shapes}")
        super().check()
        self.require((self.counts >= 1) & (self.counts < 2**48), "a class has an image count below 1 or beyond belief")
        wrong = (~self.form.possible(self.packed)).nonzero().flatten().tolist()
        if wrong:
            self.require(False, f"what is kept as the covariance of {self.labels[wrong[0]]!r} is not one")

    def merge(self, other: Statistics) -> None:
        """Add the statistics of another bank, e.g. of another worker."""
        self._check_kind(other)
        self._merge(other.labels, other.counts, other.means, self.form.times(other.packed, other.freedom))

    def _check_kind(self, other: Statistics) -> None:
        if (other.size, other.covariance, other.rank) != (self.size, self.covariance, self.rank):
            raise ConfigError(
                f"banks differ: {self.size} features with {self.covariance} covariance here, "
                f"{other.size} with {other.covariance} there"
            )

    def remove(self, label: Label) -> None:
        """Remove a class."""
        keep = [other for other in self.labels if other != label]
        if len(keep) == len(self.labels):
            raise DataError(f"class {label!r} is not in memory, so it cannot be removed")
        chosen = self.select(keep)
        self.labels, self.counts, self.means, self.packed = keep, chosen.counts, chosen.means, chosen.packed

    def select(self, labels: Sequence[Label]) -> Self:
        """A bank of some classes, in the given order."""
        position = {label: index for index, label in enumerate(self.labels)}
        missing = [label for label in labels if label not in position]
        if missing:
            raise DataError(f"class {missing[0]!r} is not in memory, which has {len(self)} classes")
        index = torch.tensor([position[label] for label in labels], dtype=torch.long, device=self.means.device)
        return self._like(list(labels), self.counts[index], self.means[index], self._packed_of(index))

    def with_statistics(self, means: Tensor, covariances: Tensor | None) -> Self:
        """The same classes and counts with other means and (unpacked) covariances; None keeps the covariances."""
        packed = self.packed if covariances is None else self._repacked(iter([linalg.symmetrise(covariances.double())]))
        return self._like(list(self.labels), self.counts.clone(), means.double().clone(), packed.clone())

    @property
    def freedom(self) -> Tensor:
        """(C,): n_c − 1, the weight of each covariance in a sum, in float64."""
        return (self.counts.double() - 1).clamp_min(0)

    @property
    def covariances(self) -> Tensor:
        """(C, S, S) covariance matrices, unbiased; an error if only means are stored."""
        return self.form.unpack(self.packed)

    @property
    def numbers_per_class(self) -> int:
        """Numbers stored per class: S + S(S+1)/2 for full covariances."""
        return self.size + self.packed.shape[1]

    @classmethod
    def from_state(cls, state: dict[str, Tensor], labels: Sequence[Label], covariance: CovarianceKind) -> Self:
        """The bank with this ``state_dict`` and these labels."""
        size = state["means"].shape[1]
        rank = state["packed"].shape[1] // max(1, size) - 1 if covariance == "low_rank" else RANK
        bank = cls(size, covariance, state["means"].device, rank)
        bank.load_state_dict(state)
        bank.labels = list(labels)
        return bank

    def _like(self, labels: list[Label], counts: Tensor, means: Tensor, packed: Tensor) -> Self:
        bank = self.emptied()
        bank.labels, bank.counts, bank.means, bank.packed = labels, counts, means, packed
        return bank

    @property
    def _packed_rows(self) -> int:
        return len(self.labels)

    def _packed_of(self, index: Tensor) -> Tensor:
        return self.packed[index]

    def blocks(self) -> Iterator[Self]:
        """Banks of some classes each, few enough for their matrices to fit into `BLOCK_BYTES`."""
        step = max(1, BLOCK_BYTES // (8 * self.size**2))
        for start in range(0, len(self), step):
            yield self.select(self.labels[start : start + step])

    def _repacked(self, blocks: Iterator[Tensor]) -> Tensor:
        """Matrices of all classes in the form of this bank."""
        return torch.cat([self.form.pack(matrices) for matrices in blocks])

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
            scatter = self.form.times(self.packed[index], self.freedom[index])
            scatter = self.form.plus(scatter, scatters[row], delta * (known * count / total) ** 0.5)
            self.means[index] += delta * (count / total)
            self.packed[index] = self.form.times(scatter, torch.full_like(self.freedom[index], 1 / max(1, total - 1)))
            self.counts[index] = total
        self.labels.extend(labels[row] for row in new)
        self.counts = torch.cat([self.counts, counts[new]])
        self.means = torch.cat([self.means, means[new]])
        weights = 1 / (counts[new].double() - 1).clamp_min(1)
        self.packed = torch.cat([self.packed, self.form.times(scatters[new], weights)])
