"""The memory part: what is stored per class."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveFloat

from adagauss.config import Part
from adagauss.data.images import LabelledImages
from adagauss.errors import DataError
from adagauss.gaussians import ClassGaussians
from adagauss.linalg import shrink_off_diagonal, shrink_to_identity, tukey
from adagauss.needs import Need
from adagauss.state import Learned
from adagauss.task import CurrentTask


class Remembered(NamedTuple):
    """A bank with the classes of one more task, and the state that the memory needs in the next task."""

    bank: ClassGaussians
    state: Learned | None = None


class Memory(Part):
    """Writes the classes of a task into a bank. This base writes nothing.

    A memory that needs only the current task defines `add`; one that learns over tasks defines `update` and
    `empty_state` instead.
    """

    role: ClassVar[str] = "memory"

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        """An empty bank."""
        return ClassGaussians(size, "none", device)

    def check(self, data: LabelledImages) -> None:
        """Refuse, before any training, a task whose classes could not be stored."""

    def update(self, bank: ClassGaussians, now: CurrentTask, before: Learned | None) -> Remembered:
        """A new bank with the current classes added; ``before`` is the state returned after the last task."""
        return Remembered(self.add(bank, now))

    def add(self, bank: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        """A new bank with the classes of the current task added."""
        return bank

    def after_drift(self, before: ClassGaussians, moved: ClassGaussians) -> ClassGaussians:
        """The bank to store after the drift has moved old classes."""
        return moved


class NoMemory(Memory):
    """Nothing is stored per class."""

    kind = "none"


class MeanMemory(Memory):
    """The mean of each class, from the features of its training images."""

    kind = "means"

    flips: bool = False
    """Compute statistics over the images and their mirror images (the published code)."""
    augmented: bool = False
    """Compute statistics over one augmented copy of the images instead of the plain images (EFC)."""

    @property
    def provides(self) -> frozenset[Need]:
        return frozenset({Need.MEANS})

    def add(self, bank: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        larger = bank.copy()
        larger.merge(self.estimate(bank, now))
        return larger

    def estimate(self, bank: ClassGaussians, now: CurrentTask, power: float | None = None) -> ClassGaussians:
        """Statistics of the current classes, from features raised to ``power`` if given."""
        new = ClassGaussians(bank.size, bank.covariance, bank.means.device)
        plain: str | int = 0 if self.augmented else "test"
        for view in (plain, "flip") if self.flips else (plain,):
            features = now.features(view)
            new.add(features if power is None else tukey(features, power), now.data.labels)
        return new.select(now.classes)


class GaussianMemory(MeanMemory):
    """One Gaussian per class, from the features of its training images."""

    kind = "gaussians"

    covariance: Literal["full", "diagonal"] = "full"
    shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·mean(diag Σ)·I, applied when a class is stored."""
    off_diagonal_shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·V·(1 − I), V the mean off-diagonal entry, applied at the same time."""
    tukey: PositiveFloat | None = None
    """λ: covariances are those of f^λ, means those of f (FeCAM). Needs non-negative features."""
    shrink_after_drift: bool = True
    """Shrink again whenever drift has changed the covariances, as in the published code: traces then grow."""

    @property
    def requires(self) -> frozenset[Need]:
        return frozenset({Need.NON_NEGATIVE} if self.tukey is not None else ())

    @property
    def provides(self) -> frozenset[Need]:
        return frozenset({Need.MEANS, Need.COVARIANCES})

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        return ClassGaussians(size, self.covariance, device)

    def check(self, data: LabelledImages) -> None:
        counts = data.counts()
        if int(counts.min()) < 2:
            single = data.classes[int(counts.argmin())]
            raise DataError(
                f"class {single!r} has a single image, and a covariance needs two: give more images, "
                "or use a method that stores only means (memory.kind=means)"
            )

    def add(self, bank: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        new = self.estimate(bank, now)
        if self.tukey is not None:
            new = new.with_statistics(new.means, self.estimate(bank, now, self.tukey).covariances)
        larger = bank.copy()
        larger.merge(self.shrunk(new))
        return larger

    def after_drift(self, before: ClassGaussians, moved: ClassGaussians) -> ClassGaussians:
        adapted = not torch.equal(before.packed, moved.packed)
        return self.shrunk(moved) if self.shrink_after_drift and adapted else moved

    def shrunk(self, bank: ClassGaussians) -> ClassGaussians:
        """A bank with every covariance shrunk to the identity, and its off-diagonal entries to their mean."""
        if self.shrinkage == self.off_diagonal_shrinkage == 0:
            return bank
        shrunk = shrink_to_identity(bank.covariances, self.shrinkage)
        return bank.with_statistics(bank.means, shrink_off_diagonal(shrunk, self.off_diagonal_shrinkage))
