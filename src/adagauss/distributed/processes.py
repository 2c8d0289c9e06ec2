"""The processes of distributed training and what they exchange; a single process by default."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

if TYPE_CHECKING:
    from lightning_fabric import Fabric

JSON = "json"
"""Name of the JSON text among the tensors of a message."""
REFERENCE = "__tensor__"
"""Key that marks a tensor in the JSON text, by its name in the message."""


class Processes:
    """This process and those that run the same program with it.

    All of them have the same state. They share the images of every training batch, feature extraction, and sums over
    images. Methods that communicate must be called in every process.

    Args:
        fabric: a launched Fabric with a data-parallel strategy; None is a single process.

    >>> alone = Processes()
    >>> alone.world, alone.first, alone.broadcast(lambda: 3)
    (1, True, 3)
    """

    def __init__(self, fabric: Fabric | None = None) -> None:
        self.fabric = fabric
        self.rank = 0 if fabric is None else fabric.global_rank
        self.world = 1 if fabric is None else fabric.world_size

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and reports progress."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Device of tensors that are sent."""
        return torch.device("cpu") if self.fabric is None else self.fabric.device

    def divide(self, number: int) -> Sharding:
        """Shard a batch of ``number`` rows over the processes, which take turns: shares differ by at most one row."""
        return Sharding(torch.arange(number) % self.world, self)

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, value: Callable[[], Any]) -> Any:
        """The result of ``value`` in the first process, in all processes; see `encode` for what can be sent."""
        if self.alone:
            return value()
        sent = encode(value() if self.first else None).to(self.device)
        length = torch.tensor([len(sent)], device=self.device)
        dist.broadcast(length, 0)
        sent = sent if self.first else sent.new_empty(int(length))
        dist.broadcast(sent, 0)
        return decode(sent)

    def sync(self, module: nn.Module) -> None:
        """Give a module the values of the first process: others may have rounded differently, even to other sizes."""
        if not self.alone:
            state = module.state_dict()
            module.load_state_dict({name: self.broadcast(state[name].detach) for name in state})


@dataclass(frozen=True)
class Sharding:
    """Which process holds which rows of a batch; each process has only its own rows.

    >>> from adagauss.distributed.processes import Processes
    >>> Processes().divide(5).rows
    tensor([0, 1, 2, 3, 4])
    """

    owners: Tensor
    """(N,) the process that holds each row."""
    processes: Processes

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def rows(self) -> Tensor:
        """Positions in the batch of the rows of this process."""
        return torch.nonzero(self.owners == self.processes.rank).flatten()

    def all_gather(self, own: Tensor) -> Tensor:
        """All rows in the order of the batch, from the ``own`` rows of each process.

        Gradients are correct for a loss that every process computes from all rows, see `SharedRows`.
        """
        if self.processes.alone:
            return own
        counts = torch.bincount(self.owners, minlength=self.processes.world).tolist()
        rows: Tensor = SharedRows.apply(own, counts, self.processes.rank)  # type: ignore[no-untyped-call]
        place = torch.argsort(torch.argsort(self.owners, stable=True))
        return rows.index_select(0, place.to(rows.device))

    def chosen(self, own: Tensor, positions: Tensor) -> tuple[Tensor, Sharding]:
        """Select rows of the batch: those of this process, and the sharding of the selection."""
        place = torch.full((len(self),), -1)
        place[self.rows] = torch.arange(len(self.rows))
        mine = place[positions]
        return own[mine[mine >= 0].to(own.device)], Sharding(self.owners[positions], self.processes)


def all_rows(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """Gather the rows of all processes, in order of rank; ``counts`` are their numbers of rows.

    Rows are sent as bytes, because not every backend supports every dtype.
    """
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    if not padded.numel():
        return rows.new_zeros(sum(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    sent = padded.view(-1).view(torch.uint8)
    received = [torch.empty_like(sent) for _ in counts]
    dist.all_gather(received, sent)
    parts = [one.view(rows.dtype).view(padded.shape) for one in received]
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def encode(value: Any) -> Tensor:
    """Encode JSON-ready data with tensors as bytes, without pickle; tuples become lists.

    >>> decode(encode({"sizes": (1, 2), "step": torch.tensor(3)}))
    {'sizes': [1, 2], 'step': tensor(3)}
    """
    tensors: dict[str, Tensor] = {}

    def refer(tensor: object) -> dict[str, str]:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{type(tensor).__name__} cannot be sent to other processes")
        name = str(len(tensors))
        tensors[name] = tensor.detach().cpu().contiguous().clone()
        return {REFERENCE: name}

    text = json.dumps(value, default=refer).encode()
    tensors[JSON] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return torch.frombuffer(bytearray(save_tensors(tensors)), dtype=torch.uint8)


def decode(content: Tensor) -> Any:
    """Decode what `encode` returned."""
    tensors = load_tensors(content.cpu().numpy().tobytes())

    def resolve(found: dict[str, Any]) -> Any:
        return tensors[found[REFERENCE]] if found.keys() == {REFERENCE} else found

    return json.loads(tensors[JSON].numpy().tobytes(), object_hook=resolve)


class SharedRows(torch.autograd.Function):
    """`all_rows` for losses that every process computes from the rows of all.

    Each of the W processes then has the same gradient, so the sum over all of them, which is the gradient of a
    process's own rows, is W times its own slice: nothing is sent. Data-parallel training divides by W again.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], rank: int) -> Tensor:
        """The rows of all processes."""
        ctx.counts, ctx.rank = counts, rank
        return all_rows(rows, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of this process's rows, times the number of processes, because DDP divides by it."""
        start = sum(ctx.counts[: ctx.rank])
        own = gradients[0][start : start + ctx.counts[ctx.rank]]
        return own * len(ctx.counts), None, None
