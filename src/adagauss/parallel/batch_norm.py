"""Batch norm over the batch of all processes, on any device (torch's own, `SyncBatchNorm`, refuses CPUs)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from adagauss.parallel.exchange import GatheredRows
from adagauss.parallel.processes import Processes

Norm = nn.modules.batchnorm._BatchNorm


def batch_norms(module: nn.Module) -> list[Norm]:
    """Every batch norm in a module."""
    return [child for child in module.modules() if isinstance(child, Norm)]


@contextmanager
def shared_batch_norm(module: nn.Module, processes: Processes) -> Iterator[None]:
    """Let the batch norms of a module see the batches of all processes meanwhile, if these are to."""
    norms = [] if processes.alone or processes.batch_norm == "local" else batch_norms(module)
    for norm in norms:
        # In the instance, so that the module keeps its class, its name in files and its parameters.
        norm.__dict__["forward"] = partial(_normalised, norm, processes)
    try:
        yield
    finally:
        for norm in norms:
            del norm.__dict__["forward"]


def average_statistics(module: nn.Module, processes: Processes) -> None:
    """Make the running statistics of local batch norms the mean over all processes."""
    if processes.alone or processes.batch_norm == "global":
        return
    for norm in batch_norms(module):
        for running in (norm.running_mean, norm.running_var):
            if running is not None:
                processes.sum_(running).div_(processes.world)


def merged_moments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number from one row (means, variances, number) per process, by Chan's formula.

    μ = Σ n_p μ_p / n and σ² = Σ n_p (σ_p² + (μ_p − μ)²) / n: no difference of large numbers.
    """
    counts = rows[:, -1:]
    number = counts.sum()
    means, variances = rows[:, :-1].chunk(2, dim=1)
    mean = (counts * means).sum(0) / number
    return mean, (counts * (variances + (means - mean).square())).sum(0) / number, number


def _normalised(norm: Norm, processes: Processes, inputs: Tensor) -> Tensor:
    """γ·(x − μ)/√(σ² + ε) + β, with μ and σ² over the inputs of all processes; statistics run along as usual."""
    if not norm.training:
        usual: Tensor = type(norm).forward(norm, inputs)
        return usual
    axes = [axis for axis in range(inputs.ndim) if axis != 1]
    values = inputs.float()
    if values.numel():
        variances, means = torch.var_mean(values, axes, correction=0)
    else:  # zeros that depend on the inputs: every process must take part in the backward pass
        variances = means = values.sum(axes)
    count = means.new_tensor([values.numel() / values.shape[1]])
    row = torch.cat([means, variances, count]).double()
    rows: Tensor = GatheredRows.apply(row, processes.world, processes.rank)  # type: ignore[no-untyped-call]
    mean, variance, number = merged_moments(rows)
    _follow(norm, mean.detach(), variance.detach() * number / (number - 1).clamp_min(1))
    scale = (variance + norm.eps).rsqrt()
    shift = -mean * scale
    if norm.affine:
        scale, shift = scale * norm.weight, shift * norm.weight + norm.bias
    shape = (1, -1) + (1,) * (inputs.ndim - 2)
    outputs = torch.addcmul(shift.float().view(shape), values, scale.float().view(shape)).to(inputs.dtype)
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
