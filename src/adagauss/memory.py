"""The memory part: what is kept of each class."""

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
    """A bank with the classes of one more task, and what the memory must know in the next one."""

    bank: ClassGaussians
    state: Learned | None = None


class Memory(Part):
    """Writes the classes of a task into a bank. This base writes nothing.

    One that needs the current task alone defines `add`; one that learns over tasks defines `update` instead, and
    `empty_state`.
    """

    role: ClassVar[str] = "memory"

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        """A bank that remembers nothing yet."""
        return ClassGaussians(size, "none", device)

    def check(self, data: LabelledImages) -> None:
        """Refuse, before anything is trained, a task that could not be remembered."""

    def update(self, bank: ClassGaussians, now: CurrentTask, before: Learned | None) -> Remembered:
        """A new bank with the current classes; ``before`` is what was handed back after the last task."""
        return Remembered(self.add(bank, now))

    def add(self, bank: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        """A new bank that has the classes of the current task as well."""
        return bank

    def after_drift(self, before: ClassGaussians, moved: ClassGaussians) -> ClassGaussians:
        """What is stored of classes that drift has moved."""
        return moved


class NoMemory(Memory):
    """Nothing is kept of any class, beyond what the network has learned."""

    kind = "none"


class MeanMemory(Memory):
    """The mean of each class, from the features of its training images."""

    kind = "means"

    flips: bool = False
    """Take statistics over the images and their mirror images (the published code)."""
    augmented: bool = False
    """Take statistics over one augmented pass of the images instead of the plain ones (EFC)."""

    @property
    def provides(self) -> frozenset[Need]:
        return frozenset({Need.MEANS})

    def add(self, bank: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        larger = bank.copy()
        larger.merge(self.estimate(bank, now))
        return larger

    def estimate(self, bank: ClassGaussians, now: CurrentTask, power: float | None = None) -> ClassGaussians:
        """Statistics of the current classes, of features raised to ``power`` if one is given."""
        new = ClassGaussians(bank.size, bank.covariance, bank.means.device)
        plain: str | int = 0 if self.augmented else "test"
        for view in (plain, "flip") if self.flips else (plain,):
            features = now.features(view)
            new.add(features if power is None else tukey(features, power), now.data.labels)
        return new.select(now.classes)


class GaussianMemory(MeanMemory):
    """A Gaussian for each class, from the features of its training images."""

    kind = "gaussians"

    covariance: Literal["full", "diagonal"] = "full"
    shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·mean(diag Σ)·I, applied when a class is stored."""
    off_diagonal_shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·V·(1 − I), V the mean off-diagonal entry, applied with it."""
    tukey: PositiveFloat | None = None
    """λ: covariances are those of f^λ, while means stay those of f (FeCAM). Needs non-negative features."""
    shrink_after_drift: bool = True
    """Apply it again whenever drift has changed the covariances, as the published code does: traces then grow."""

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
            lonely = data.classes[int(counts.argmin())]
            raise DataError(
                f"class {lonely!r} has a single image, and a covariance needs two: give more images, "
                "or use a method that keeps means only (memory.kind=means)"
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
