"""The memory part: what is kept of each class."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat

from adagauss.config import Part
from adagauss.data.images import LabelledImages
from adagauss.errors import DataError
from adagauss.gaussians import ClassGaussians, CovarianceKind
from adagauss.linalg import shrink_off_diagonal, shrink_to_identity, tukey
from adagauss.task import CurrentTask


class Memory(Part):
    """Writes the classes of a task into a bank. This base writes nothing."""

    role: ClassVar[str] = "memory"

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        """A bank that remembers nothing yet."""
        return ClassGaussians(size, "none", device)

    def check(self, data: LabelledImages) -> None:
        """Refuse, before anything is trained, a task that could not be remembered."""

    def add(self, bank: ClassGaussians, now: CurrentTask) -> None:
        """Remember the classes of the current task."""

    def after_drift(self, before: ClassGaussians, moved: ClassGaussians) -> ClassGaussians:
        """What is stored of classes that drift has moved."""
        return moved


class NoMemory(Memory):
    """Nothing is kept of any class, beyond what the network has learned."""

    kind = "none"


class GaussianMemory(Memory):
    """A Gaussian (or only a mean) a class, from the features of its training images."""

    kind = "gaussians"

    covariance: CovarianceKind = "full"
    flips: bool = False
    """Take statistics over the images and their mirror images (the published code)."""
    augmented: bool = False
    """Take statistics over one augmented pass of the images instead of the plain ones (EFC)."""
    shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·mean(diag Σ)·I, applied when a class is stored."""
    off_diagonal_shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·V·(1 − I), V the mean off-diagonal entry, applied with it."""
    tukey: PositiveFloat | None = None
    """λ: covariances are those of f^λ, while means stay those of f (FeCAM). Needs non-negative features."""
    shrink_after_drift: bool = True
    """Apply it again whenever drift has changed the covariances, as the published code does: traces then grow."""

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        return ClassGaussians(size, self.covariance, device)

    def check(self, data: LabelledImages) -> None:
        counts = data.counts()
        if self.covariance != "none" and int(counts.min()) < 2:
            lonely = data.classes[int(counts.argmin())]
            raise DataError(
                f"class {lonely!r} has a single image, and a covariance needs two: give more images, "
                "or keep means only with memory.covariance=none"
            )

    def add(self, bank: ClassGaussians, now: CurrentTask) -> None:
        new = self._estimate(bank, now, None)
        if self.tukey is not None and self.covariance != "none":
            new = new.with_statistics(new.means, self._estimate(bank, now, self.tukey).covariances)
        bank.merge(self.shrunk(new.select(now.classes)))

    def _estimate(self, bank: ClassGaussians, now: CurrentTask, power: float | None) -> ClassGaussians:
        new = ClassGaussians(bank.size, self.covariance, bank.means.device)
        plain: str | int = 0 if self.augmented else "test"
        for view in (plain, "flip") if self.flips else (plain,):
            features = now.features(view)
            new.add(features if power is None else tukey(features, power), now.data.labels)
        return new

    def after_drift(self, before: ClassGaussians, moved: ClassGaussians) -> ClassGaussians:
        adapted = not torch.equal(before.packed, moved.packed)
        return self.shrunk(moved) if self.shrink_after_drift and adapted else moved

    def shrunk(self, bank: ClassGaussians) -> ClassGaussians:
        """A bank with every covariance shrunk to the identity, and its off-diagonal entries to their mean."""
        if self.covariance == "none" or self.shrinkage == self.off_diagonal_shrinkage == 0:
            return bank
        shrunk = shrink_to_identity(bank.covariances, self.shrinkage)
        return bank.with_statistics(bank.means, shrink_off_diagonal(shrunk, self.off_diagonal_shrinkage))
