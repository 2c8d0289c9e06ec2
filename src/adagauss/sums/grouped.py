"""Sums over groups of features, each group for itself: what one classifier for each group is solved from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from adagauss.analytic.moments import FeatureSums
from adagauss.core.state import Groups


class GroupSums(nn.Module):
    """`FeatureSums` of each group. Products of features of different groups are not kept: G·(S/G)² instead of S²."""

    def __init__(self, widths: Sequence[int] = ()) -> None:
        super().__init__()
        self.parts = nn.ModuleList(FeatureSums(width) for width in widths)

    def each(self) -> list[FeatureSums]:
        """The sums of each group."""
        return [part for part in self.parts if isinstance(part, FeatureSums)]

    @property
    def widths(self) -> list[int]:
        """Number of features in each group."""
        return [part.width for part in self.each()]

    @property
    def width(self) -> int:
        """Number of features of all groups."""
        return sum(self.widths)

    @property
    def counts(self) -> Tensor:
        """Number of images of each class, which all groups have in common."""
        return self.each()[0].counts

    @property
    def cross(self) -> Tensor:
        """(S, C) sums of all features over the images of each class."""
        return torch.cat([part.cross for part in self.each()])

    def copy(self) -> Self:
        """Sums that can be changed without changing these."""
        copied = type(self)()
        copied.parts = nn.ModuleList(part.copy() for part in self.each())
        return copied

    def empty_like(self, classes: int) -> Self:
        """Sums over no image of so many classes, to be merged with these."""
        empty = type(self)()
        empty.parts = nn.ModuleList(part.empty_like(classes) for part in self.each())
        return empty

    def add_(self, features: Tensor, targets: Tensor, classes: int | None = None) -> Self:
        """Take in images: (N, S) features, one target per image, and how many classes there are from now on."""
        for part, some in zip(self.each(), torch.split(features, self.widths, 1), strict=True):
            part.add_(some, targets, classes)
        return self

    def remove_(self, features: Tensor, targets: Tensor) -> Self:
        """Forget images that were added, given again."""
        for part, some in zip(self.each(), torch.split(features, self.widths, 1), strict=True):
            part.remove_(some, targets)
        return self

    def merge_(self, other: GroupSums, columns: Sequence[int] | None = None) -> Self:
        """Add what another learner has summed over the same features; ``columns`` are those of its classes here."""
        for part, theirs in zip(self.each(), other.each(), strict=True):
            part.merge_(theirs, columns)
        return self

    def regroup_(self, groups: Groups) -> Self:
        """Drop the classes in no group of ``groups``, and make one class of each."""
        for part in self.each():
            part.regroup_(groups)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # How many groups there are is learned from the network, as sizes are.
        place = f"{prefix}parts."
        found = {key[len(place) :].partition(".")[0] for key in state_dict if key.startswith(place)}
        self.parts = nn.ModuleList(FeatureSums(0) for _ in found)
        super()._load_from_state_dict(state_dict, prefix, *args)
