"""The memory part: what is stored per class."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, field_validator
from torch import Tensor

from adagauss.core.config import Part, Requirement, refuse_removed
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.linalg import shrink_off_diagonal, shrink_to_identity, tukey
from adagauss.core.state import ClassMap
from adagauss.core.task import CurrentTask
from adagauss.data.images import Label, LabelledImages
from adagauss.errors import DataError


class Memory(Part):
    """Writes the classes of a task into a bank. This base stores nothing."""

    role: ClassVar[str] = "memory"
    kind = "none"

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        """An empty bank."""
        return ClassGaussians(size, "none", device)

    def check(self, data: LabelledImages, known: Collection[Label] = ()) -> None:
        """Refuse, before any training, a task whose classes cannot be stored; ``known`` are stored already."""

    def add(self, bank: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        """A new bank with the classes of the current task added."""
        return bank

    def after_drift(self, before: ClassGaussians, moved: ClassGaussians) -> ClassGaussians:
        """The bank to store after the drift has moved old classes."""
        return moved

    def joined(self, bank: ClassGaussians, other: ClassGaussians) -> ClassGaussians:
        """A new bank with the classes of both; statistics of a class in both are merged, weighted by its counts."""
        larger = bank.copy()
        larger.merge(other)
        return larger

    def remap_classes(self, bank: ClassGaussians, groups: ClassMap) -> ClassGaussians:
        """A new bank after classes were removed or merged, by the law of total covariance."""
        if not len(bank):
            return bank
        labels = [bank.labels[group[0]] for group in groups]
        smaller = bank.select(labels)
        for label, group in zip(labels, groups, strict=True):
            for column in group[1:]:
                one = bank.select([bank.labels[column]])
                one.labels = [label]
                smaller = self.joined(smaller, one)
        return smaller


class MeanMemory(Memory):
    """The mean of each class, from the features of its training images."""

    kind = "means"
    provides: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS})
    flips: bool = False
    """Compute statistics over the images and their mirror images (the published code)."""
    augmented: bool = False
    """Compute statistics over one augmented copy of the images instead of the plain images (EFC)."""

    def add(self, bank: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        return self.joined(bank, self.estimate(bank, now))

    def estimate(self, bank: ClassGaussians, now: CurrentTask, power: float | None = None) -> ClassGaussians:
        """Statistics of the current classes, from features raised to ``power`` if given."""
        new = bank.empty_like()
        plain: str | int = 0 if self.augmented else "test"
        for view in (plain, "flip") if self.flips else (plain,):
            features = now.features(view)
            features = features if power is None else tukey(features, power)
            new.add(features, [now.classes[target] for target in now.targets.tolist()])
        return new.select(now.classes)


class GaussianMemory(MeanMemory):
    """One Gaussian per class, from the features of its training images."""

    kind = "gaussians"
    provides: ClassVar[frozenset[Requirement]] = frozenset({Requirement.MEANS, Requirement.COVARIANCES})
    covariance: Literal["full", "diagonal"] = "full"
    """Of each class: the full matrix or its diagonal."""
    shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·mean(diag Σ)·I, applied when a class is stored."""
    off_diagonal_shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·V·(1 − I), V the mean off-diagonal entry, applied at the same time."""
    tukey: PositiveFloat | None = None
    """λ: covariances are those of f^λ, means those of f (FeCAM). Needs non-negative features."""
    shrink_after_drift: bool = True
    """Shrink again whenever drift has changed the covariances, as in the published code: traces then grow."""

    @field_validator("covariance", mode="before")
    @classmethod
    def _not_removed(cls, value: object) -> object:
        refuse_removed("covariance", str(value))
        return value

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.NON_NEGATIVE} if self.tukey is not None else ())

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        return ClassGaussians(size, self.covariance, device)

    def check(self, data: LabelledImages, known: Collection[Label] = ()) -> None:
        counts = zip(data.classes, data.counts().tolist(), strict=True)
        if single := [label for label, count in counts if count < 2 and label not in known]:
            raise DataError(
                f"class {single[0]!r} has a single image, and a covariance needs two: give more images, "
                "or use a method that stores only means (memory.kind=means)"
            )

    def add(self, bank: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        new = self.estimate(bank, now)
        if self.tukey is not None:
            new = new.with_statistics(new.means, self.estimate(bank, now, self.tukey).covariances)
        return self.joined(bank, self.shrunk(new))

    def joined(self, bank: ClassGaussians, other: ClassGaussians) -> ClassGaussians:
        """As if a class had been stored once: the spread between its two means is shrunk as covariances are.

        With ``tukey`` the spread is that between μ^λ, as in the classifier: the means of f^λ are not stored.
        """
        larger = super().joined(bank, other)
        both = [label for label in other.labels if label in set(bank.labels)]
        if not both or (self.tukey is None and self.shrinkage == self.off_diagonal_shrinkage == 0):
            return larger
        one, two = bank.select(both), other.select(both)
        known, new = one.counts.double(), two.counts.double()
        weight = (known * new / (known + new) / (known + new - 1)).view(-1, 1, 1)
        wanted, plain = self._shrunk(_spread(one.means, two.means, self.tukey)), _spread(one.means, two.means)
        joined = larger.select(both)
        joined = joined.with_statistics(joined.means, joined.covariances + weight * (wanted - plain))
        larger.packed[[larger.labels.index(label) for label in both]] = joined.packed
        return larger

    def after_drift(self, before: ClassGaussians, moved: ClassGaussians) -> ClassGaussians:
        adapted = not torch.equal(before.packed, moved.packed)
        return self.shrunk(moved) if self.shrink_after_drift and adapted else moved

    def shrunk(self, bank: ClassGaussians) -> ClassGaussians:
        """A bank with every covariance shrunk to the identity, and its off-diagonal entries to their mean."""
        if self.shrinkage == self.off_diagonal_shrinkage == 0:
            return bank
        return bank.with_statistics(bank.means, self._shrunk(bank.covariances))

    def _shrunk(self, matrices: Tensor) -> Tensor:
        return shrink_off_diagonal(shrink_to_identity(matrices, self.shrinkage), self.off_diagonal_shrinkage)


def _spread(one: Tensor, other: Tensor, power: float | None = None) -> Tensor:
    """(C, S, S) products δδᵀ of the differences of two means of each class, raised to ``power`` first if given."""
    delta = other - one if power is None else tukey(other, power) - tukey(one, power)
    return delta.unsqueeze(2) * delta.unsqueeze(1)
