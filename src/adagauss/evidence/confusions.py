"""Which classes images were taken for: counts of the pairs that happened, not of all pairs that could."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from adagauss.state import Groups, Learned, moves


class Confusions(Learned):
    """How many images of each class were taken for which (their own included), as triples (true, taken, count).

    Each pair of classes with a count above zero has one triple; they are sorted by ``true``, then by ``taken``. So n
    images of C classes take 12·min(n, C²) bytes at the most, where a table takes 4·C².
    """

    axes: ClassVar[Mapping[str, str]] = {"true": "q", "taken": "q", "counts": "q"}
    keeps: ClassVar[str] = "how many images of each class were taken for which"

    def __init__(self) -> None:
        super().__init__()
        for name in self.axes:
            self.register_buffer(name, torch.zeros(0, dtype=torch.int32))
        self.true: Tensor
        self.taken: Tensor
        self.counts: Tensor

    @classmethod
    def of_table(cls, table: Tensor) -> Self:
        """From the counts of all pairs, (C, C)."""
        found = cls()
        true, taken = table.nonzero(as_tuple=True)
        found.true, found.taken, found.counts = true.int(), taken.int(), table[true, taken].int()
        return found

    def check(self) -> None:
        """Raise a `DataError` if these cannot be counts of pairs."""
        super().check()
        self.require(self.counts > 0, "it holds counts of no image")
        self.require((self.true >= 0) & (self.taken >= 0), "it holds counts of no class")
        self.require(_keys(self.true, self.taken).diff() > 0, "its pairs are not in order")

    @property
    def classes(self) -> int:
        """How many classes there are at least."""
        return 1 + int(torch.maximum(self.true, self.taken).max()) if len(self.counts) else 0

    def add(self, true: Tensor, taken: Tensor, counts: Tensor | None = None) -> None:
        """Count further images: one of each pair, or as many as ``counts`` says."""
        counts = torch.ones_like(true) if counts is None else counts
        keys = torch.cat([_keys(self.true, self.taken), _keys(true, taken)])
        pairs, places = torch.unique(keys, return_inverse=True)
        summed = torch.zeros_like(pairs).index_add_(0, places, torch.cat([self.counts.long(), counts.long()]))
        self.true, self.taken, self.counts = (pairs // BASE).int(), (pairs % BASE).int(), summed.int()

    def drop(self, columns: Tensor) -> None:
        """Leave out what images of some classes were taken for."""
        kept = ~torch.isin(self.true, columns.to(self.true))
        self.true, self.taken, self.counts = self.true[kept], self.taken[kept], self.counts[kept]

    def images(self, classes: int) -> Tensor:
        """(C,) of how many images of each class it is known what they were taken for."""
        found = torch.zeros(classes, dtype=torch.long, device=self.counts.device)
        return found.index_add_(0, self.true.long(), self.counts.long())

    def rows(self, classes: int) -> list[dict[int, int]]:
        """For each class, what its images were taken for and how many."""
        found: list[dict[int, int]] = [{} for _ in range(classes)]
        for true, taken, count in zip(self.true.tolist(), self.taken.tolist(), self.counts.tolist(), strict=True):
            found[true][taken] = count
        return found

    def regrouped(self, groups: Groups) -> Self:
        home = self.counts.device
        before, after = moves(groups, home)
        places = torch.full((max(self.classes, int(before.max()) + 1 if len(before) else 0),), -1, device=home)
        places[before] = after
        true, taken = places[self.true.long()], places[self.taken.long()]
        kept = (true >= 0) & (taken >= 0)
        fewer = type(self)().to(home)
        fewer.add(true[kept], taken[kept], self.counts[kept])
        return fewer

    def merged(self, other: Self, columns: tuple[int, ...]) -> Self:
        home = self.counts.device
        places = torch.tensor(columns, dtype=torch.long, device=home)
        both = type(self)().to(home)
        both.add(self.true, self.taken, self.counts)
        both.add(places[other.true.to(places)], places[other.taken.to(places)], other.counts.to(home))
        return both


BASE = 2**31
"""More than any column, which are int32."""


def _keys(true: Tensor, taken: Tensor) -> Tensor:
    """One number for each pair, in their order."""
    return true.long() * BASE + taken.long()
