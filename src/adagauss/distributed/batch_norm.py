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
        norm.__dict__["forward"] = partial(_normalised, norm, processes)
    try:
        yield
    finally:
        for norm in norms:
            del norm.__dict__["forward"]


def merged_moments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number from one row (means, variances, number) per process, by Chan's formula.

    μ = Σ n_p μ_p / n and σ² = Σ n_p (σ_p² + (μ_p − μ)²) / n: no difference of large numbers.
    """
    counts = rows[:, -1:]
    number = counts.sum()
    means, variances = rows[:, :-1].chunk(2, dim=1)
    mean = (counts * means).sum(0) / number
    return mean, (counts * (variances + (means - mean).square())).sum(0) / number, number


class _Normalised(torch.autograd.Function):
    """γ·x̂ + β with x̂ = (x − μ)/√(σ² + ε), μ and σ² over the inputs of all processes; also returns μ, σ² and the count.

    Torch's fused kernels do the work on the own inputs, and small sums travel: (μ_p, σ_p², n_p) forward, and backward
    Σ∂y and Σ∂y·x̂, for ∂x = γ/√(σ² + ε) · (∂y − mean ∂y − x̂ · mean(∂y·x̂)).
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, processes: Processes
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Normalised inputs, and the statistics of the batch of all processes."""
        width, own = inputs.shape[1], inputs.numel() // inputs.shape[1]
        row = torch.zeros(2 * width + 1, dtype=torch.float64, device=inputs.device)
        if own:
            _, mean, inverse = torch.native_batch_norm(inputs, None, None, None, None, True, 0.0, eps)
            row[:width], row[width:-1], row[-1] = mean, inverse.double().pow(-2) - eps, own
        mean, variance, number = merged_moments(processes.all_gather(row))
        mean, variance = mean.to(row.device, torch.float32), variance.float()
        if own:
            outputs = torch.native_batch_norm(inputs, weight, bias, mean, variance, False, 0.0, eps)[0]
        else:
            outputs = inputs.clone()
        ctx.save_for_backward(inputs, weight, mean, variance)
        ctx.eps, ctx.number, ctx.processes = eps, number, processes
        ctx.mark_non_differentiable(mean, variance, number)
        return outputs, mean, variance, number

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of this process's inputs, weight and bias."""
        inputs, weight, mean, variance = ctx.saved_tensors
        width, shape = inputs.shape[1], (1, -1) + (1,) * (inputs.ndim - 2)
        # Unit weights for norms without weights, so that the sums are computed.
        scale = mean.new_ones(width) if weight is None else weight
        if inputs.numel():
            wanted, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
                gradients[0], inputs, scale, mean, variance, None, None, False, ctx.eps, [True] * 3
            )
        else:
            wanted, of_weight, of_bias = torch.zeros_like(inputs), mean.new_zeros(width), mean.new_zeros(width)
        sums = ctx.processes.sum_(torch.cat([of_weight, of_bias]).double()) / ctx.number
        inverse = (variance.double() + ctx.eps).rsqrt()
        slope = -sums[:width] * inverse * inverse * scale
        offset = -sums[width:] * inverse * scale - slope * mean
        wanted.add_(offset.to(inputs).view(shape)).addcmul_(inputs, slope.to(inputs).view(shape))
        return wanted, *((None, None) if weight is None else (of_weight, of_bias)), None, None


def _normalised(norm: Norm, processes: Processes, inputs: Tensor) -> Tensor:
    """Apply a batch norm to the inputs of this process and update its running statistics."""
    if not norm.training:
        usual: Tensor = type(norm).forward(norm, inputs)
        return usual
    outputs, mean, variance, number = _Normalised.apply(  # type: ignore[no-untyped-call]
        inputs, norm.weight, norm.bias, norm.eps, processes
    )
    _follow(norm, mean, variance * float(number / (number - 1).clamp_min(1)))
    for name in ("drop", "act"):  # timm's norms hold the activation too
        outputs = getattr(norm, name, nn.Identity())(outputs)
    normal: Tensor = outputs
    return normal


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
