"""Label augmentation: extra images of extra classes that exist only while a task is trained."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from adagauss.core.config import Part
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.errors import DataError
from adagauss.representation.live import Live


class LiveAugmentation(Live):
    """Label augmentation for one task."""

    changes: bool = True
    """Whether it does anything in this task: several processes must then show each other their images."""

    def forward(self, images: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The larger batch, whose added images have auxiliary labels (numbered after the classes)."""
        raise TypeError(f"{type(self).__name__} must define forward")


class LabelAugmentation(Part):
    """Turns a batch into a larger one. This base adds nothing.

    A label augmentation that learns defines `start`; for one that is a function of the batch, `augment` is enough.
    """

    role: ClassVar[str] = "label_augmentation"

    def copies(self, first: bool) -> int:
        """How many times larger a batch becomes; loaders divide their batch size by it."""
        return 1

    def changes(self, first: bool) -> bool:
        """Whether it does anything to a batch."""
        return True

    def auxiliary_outputs(self, classes: int, first: bool) -> int:
        """Number of auxiliary labels in a task with ``classes`` classes."""
        return 0

    def start(self, now: CurrentTask, before: State | None) -> LiveAugmentation:
        """The augmentation for this task; ``before`` is the state it returned after the last task."""
        return _PureAugmentation(self, len(now.classes), now.first)

    def augment(
        self, images: Tensor, targets: Tensor, classes: int, first: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The larger batch."""
        return images, targets


class _PureAugmentation(LiveAugmentation):
    """An augmentation that is a function of the batch."""

    def __init__(self, part: LabelAugmentation, classes: int, first: bool) -> None:
        super().__init__()
        self.part, self.classes, self.first = part, classes, first
        self.changes = part.changes(first)

    def forward(self, images: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.part.augment(images, targets, self.classes, self.first, generator)


class NoLabelAugmentation(LabelAugmentation):
    """Batches are not changed."""

    kind = "none"

    def changes(self, first: bool) -> bool:
        return False


class Rotations(LabelAugmentation):
    """Every image in its four rotations by 90°; class y turned k times is the label y + k·C."""

    kind = "rotations"
    when: Literal["first", "always"] = "first"

    def copies(self, first: bool) -> int:
        return 4 if first or self.when == "always" else 1

    def changes(self, first: bool) -> bool:
        return self.copies(first) > 1

    def auxiliary_outputs(self, classes: int, first: bool) -> int:
        return classes * (self.copies(first) - 1)

    def augment(
        self, images: Tensor, targets: Tensor, classes: int, first: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        copies = self.copies(first)
        if copies > 1 and images.shape[2] != images.shape[3]:
            raise DataError(
                f"images of {images.shape[2]} x {images.shape[3]} pixels cannot be rotated by 90°: make them square, "
                "or set representation.label_augmentation.kind=none"
            )
        turned = torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(copies)])
        return turned, torch.cat([targets + turns * classes for turns in range(copies)])
