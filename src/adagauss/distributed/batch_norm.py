"""Batch norm over the batch of all processes, on any device (torch's own, `SyncBatchNorm`, refuses CPUs)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adagauss.distributed.processes import Processes

Norm = nn.modules.batchnorm._BatchNorm


def batch_norms(module: nn.Module) -> list[Norm]:
    """Every batch norm in a module."""
    return [child for child in module.modules() if isinstance(child, Norm)]


@contextmanager
def shared_batch_norm(module: nn.Module, processes: Processes) -> Iterator[None]:
    """Let the batch norms of a module use the batches of all processes."""
    norms = [] if processes.alone else batch_norms(module)
    for norm in norms:
        # In the instance, so that the module keeps its class, its name in files and its parameters.
        norm.__dict__["forward"] = partial(normalised, norm, processes)
    try:
        yield
    finally:
        for norm in norms:
            del norm.__dict__["forward"]


class _Sum(torch.autograd.Function):
    """The sum over all processes. Each of them affects the losses of all, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return processes.sum_(own.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.processes.sum_(gradients[0].clone()), None


def normalised(norm: Norm, processes: Processes, inputs: Tensor) -> Tensor:
    """γ·(x − μ)/√(σ² + ε) + β, μ and σ² in float64 over the inputs of all processes; updates the running statistics."""
    if not norm.training:
        usual: Tensor = type(norm).forward(norm, inputs)
        return usual
    axes, shape = [0, *range(2, inputs.ndim)], (1, -1) + (1,) * (inputs.ndim - 2)

    def mean_of(values: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(values.sum(axes, dtype=torch.float64), processes)  # type: ignore[no-untyped-call]
        return total / number

    number = processes.sum_(torch.tensor(inputs.numel() / inputs.shape[1], dtype=torch.float64, device=inputs.device))
    mean = mean_of(inputs)
    centred = inputs - mean.to(inputs).view(shape)
    variance = mean_of(centred.square())
    outputs = centred * (variance + norm.eps).rsqrt().to(inputs).view(shape)
    if norm.affine:
        outputs = outputs * norm.weight.view(shape) + norm.bias.view(shape)
    _follow(norm, mean.detach(), variance.detach() * (number / (number - 1).clamp_min(1)))
    for name in ("drop", "act"):  # timm's norms hold the activation too
        outputs = getattr(norm, name, nn.Identity())(outputs)
    return outputs


@torch.no_grad()
def _follow(norm: Norm, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics."""
    if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked += 1
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean), share)
    norm.running_var.lerp_(variance.to(norm.running_var), share)
