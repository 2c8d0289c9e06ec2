"""The memory part: what is kept of each class."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import NonNegativeFloat

from adagauss.config import Part
from adagauss.errors import DataError
from adagauss.gaussians import ClassGaussians, CovarianceKind
from adagauss.linalg import shrink_to_identity
from adagauss.task import CurrentTask


class Memory(Part):
    """Writes the classes of a task into a bank. This base writes nothing."""

    role: ClassVar[str] = "memory"

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        """A bank that remembers nothing yet."""
        return ClassGaussians(size, "none", device)

    def add(self, bank: ClassGaussians, now: CurrentTask) -> None:
        """Remember the classes of the current task."""

    def after_drift(self, bank: ClassGaussians) -> ClassGaussians:
        """What is stored of classes that drift has moved."""
        return bank


class NoMemory(Memory):
    """Nothing is kept of any class, beyond what the network has learned."""

    kind = "none"


class GaussianMemory(Memory):
    """A Gaussian (or only a mean) a class, from the features of its training images."""

    kind = "gaussians"

    covariance: CovarianceKind = "full"
    flips: bool = False
    """Take statistics over the images and their mirror images (the published code)."""
    shrinkage: NonNegativeFloat = 0.0
    """γ of Σ + γ·mean(diag Σ)·I, applied when a class is stored."""
    shrink_after_drift: bool = True
    """Apply it again whenever drift has moved the stored Gaussians, as the published code does: traces then grow."""

    def empty(self, size: int, device: torch.device | str = "cpu") -> ClassGaussians:
        return ClassGaussians(size, self.covariance, device)

    def add(self, bank: ClassGaussians, now: CurrentTask) -> None:
        counts = now.data.counts()
        if self.covariance != "none" and int(counts.min()) < 2:
            lonely = now.classes[int(counts.argmin())]
            raise DataError(
                f"class {lonely!r} has a single image, and a covariance needs two: give more images, "
                "or keep means only with memory.covariance=none"
            )
        new = ClassGaussians(bank.size, self.covariance, bank.means.device)
        labels = now.data.labels
        new.add(now.features("test"), labels)
        if self.flips:
            new.add(now.features("flip"), labels)
        bank.merge(self.shrunk(new.select(now.classes)))

    def after_drift(self, bank: ClassGaussians) -> ClassGaussians:
        return self.shrunk(bank) if self.shrink_after_drift else bank

    def shrunk(self, bank: ClassGaussians) -> ClassGaussians:
        """A bank with every covariance shrunk to the identity."""
        if self.shrinkage == 0 or self.covariance == "none":
            return bank
        return bank.with_statistics(bank.means, shrink_to_identity(bank.covariances, self.shrinkage))
