"""Label augmentation: extra images of extra classes that exist only while a task is trained."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from adagauss.config import Part
from adagauss.errors import DataError


class Expansion(Part):
    """Turns a batch into a larger one whose added images carry auxiliary labels (numbered after the classes)."""

    role: ClassVar[str] = "expansion"

    def copies(self, first: bool) -> int:
        """How many times larger a batch becomes; loaders divide their batch size by it."""
        return 1

    def auxiliary_outputs(self, classes: int, first: bool) -> int:
        """Auxiliary labels of a task of ``classes`` classes."""
        return 0

    def expand(
        self, images: Tensor, targets: Tensor, classes: int, first: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The larger batch."""
        return images, targets


class NoExpansion(Expansion):
    """Batches stay as they are."""

    kind = "none"


class Rotations(Expansion):
    """Every image in its four rotations by 90°; class y turned k times is the label y + k·C."""

    kind = "rotations"
    when: Literal["first", "always"] = "first"

    def copies(self, first: bool) -> int:
        return 4 if first or self.when == "always" else 1

    def auxiliary_outputs(self, classes: int, first: bool) -> int:
        return classes * (self.copies(first) - 1)

    def expand(
        self, images: Tensor, targets: Tensor, classes: int, first: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        copies = self.copies(first)
        if copies > 1 and images.shape[2] != images.shape[3]:
            raise DataError(
                f"images of {images.shape[2]} x {images.shape[3]} pixels cannot be turned by 90°: make them square, "
                "or set representation.expansion.kind=none"
            )
        turned = torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(copies)])
        return turned, torch.cat([targets + turns * classes for turns in range(copies)])
