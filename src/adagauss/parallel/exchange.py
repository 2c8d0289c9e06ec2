"""What processes send each other, on the default group of `torch.distributed`: bytes, rows and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def all_rows(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """The rows of all processes, one process after another; ``counts`` says how many each of them has.

    They travel as bytes, since not every backend knows every type of number.
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


class SharedRows(torch.autograd.Function):
    """`all_rows`, for losses that every process computes alike from the rows of all.

    Each of the W processes then has the same gradient, so the sum over all of them, which is the gradient of a
    process's own rows, is W times its own slice: nothing need be sent. Data-parallel training divides by W again.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Sequence[int], rank: int) -> Tensor:
        """The rows of all processes."""
        ctx.counts, ctx.rank = counts, rank
        return all_rows(rows, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The part of this process's rows, times the number of processes, by which DDP divides."""
        start = sum(ctx.counts[: ctx.rank])
        own = gradients[0][start : start + ctx.counts[ctx.rank]]
        return own * len(ctx.counts), None, None


def bytes_from_first(content: bytes, first: bool, device: torch.device) -> bytes:
    """What the first process gives, in all processes."""
    length = torch.tensor([len(content)], device=device)
    dist.broadcast(length, 0)
    sent = torch.empty(int(length), dtype=torch.uint8, device=device)
    if first:
        sent.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else sent)
    dist.broadcast(sent, 0)
    return sent.cpu().numpy().tobytes()


def bytes_of_all(content: bytes, world: int, device: torch.device) -> list[bytes]:
    """What each process gives, in all processes."""
    lengths = all_rows(torch.tensor([len(content)], device=device), [1] * world).tolist()
    own = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device) if content else torch.empty(0).byte()
    rows = all_rows(own.to(device), lengths)
    return [one.cpu().numpy().tobytes() for one in torch.split(rows, lengths)]
