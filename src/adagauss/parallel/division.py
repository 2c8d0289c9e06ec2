"""Which process holds which rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adagauss.parallel.exchange import SharedRows

if TYPE_CHECKING:
    from adagauss.parallel.processes import Processes


@dataclass(frozen=True)
class Division:
    """Every process knows how large a batch is and which process holds each of its rows; it has only its own.

    >>> from adagauss.parallel.processes import Processes
    >>> Division.turns(5, Processes()).rows
    tensor([0, 1, 2, 3, 4])
    """

    owners: Tensor
    """(N,) the process that holds each row."""
    processes: Processes

    @classmethod
    def turns(cls, number: int, processes: Processes) -> Division:
        """Processes take turns: their shares differ by one row at the most."""
        return cls(torch.arange(number) % processes.world, processes)

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def rows(self) -> Tensor:
        """Positions in the batch of the rows of this process."""
        return torch.nonzero(self.owners == self.processes.rank).flatten()

    def gathered(self, own: Tensor) -> Tensor:
        """All rows in the order of the batch, from the ``own`` of each process.

        Gradients are right for a loss that every process computes alike from all rows, see `SharedRows`.
        """
        if self.processes.alone:
            return own
        counts = torch.bincount(self.owners, minlength=self.processes.world).tolist()
        rows: Tensor = SharedRows.apply(own, counts, self.processes.rank)  # type: ignore[no-untyped-call]
        place = torch.argsort(torch.argsort(self.owners, stable=True))
        return rows.index_select(0, place.to(rows.device))

    def chosen(self, own: Tensor, positions: Tensor) -> tuple[Tensor, Division]:
        """Some rows of the batch, as they are held: those of this process among them, and who holds each."""
        place = torch.full((len(self),), -1)
        place[self.rows] = torch.arange(len(self.rows))
        mine = place[positions]
        return own[mine[mine >= 0].to(own.device)], Division(self.owners[positions], self.processes)
