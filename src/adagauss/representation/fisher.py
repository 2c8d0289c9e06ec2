"""The diagonal of the Fisher information and the quadratic penalty, for elastic weight consolidation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.func import grad, vmap

from adagauss.distributed.processes import Processes

Loss = Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]
"""Maps parameters by name, a batch of images and their labels to the mean negative log-likelihood of the batch."""

GRADIENT_NUMBERS = 1 << 26
"""Limit for the numbers in per-image gradients: it bounds the memory to 256 MB for any network."""


def fisher_diagonal(
    loss: Loss,
    parameters: Mapping[str, Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    per_image: bool = True,
    processes: Processes | None = None,
) -> dict[str, Tensor]:
    """F_i = (1/N) Σ_n (∂ log p(y_n | x_n) / ∂θ_i)², the mean over images of squared gradients.

    Without ``per_image``, the squared gradient of the batch mean replaces the squared gradients of its images, weighted
    by the batch size. Near a minimum the gradients of images cancel, so that this is smaller by a factor of about the
    batch size: the weight of a penalty depends on this choice.

    Several ``processes`` each give their share of every batch, and get the F of all.
    """
    processes = processes or Processes()
    points = {name: parameter.detach() for name, parameter in parameters.items()}
    at_once = max(1, GRADIENT_NUMBERS // max(1, sum(point.numel() for point in points.values())))

    def of_one(point: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return loss(point, image.unsqueeze(0), label.unsqueeze(0))

    per_image_gradients = vmap(grad(of_one), in_dims=(None, 0, 0))
    batch_gradient = grad(loss)
    sums = {name: torch.zeros_like(point, memory_format=torch.contiguous_format) for name, point in points.items()}
    total = 0
    for images, labels in batches:
        number = int(processes.sum_(torch.tensor(len(images), device=images.device)))
        total += number
        if not per_image:
            share = len(images) / number
            for name, gradient in batch_gradient(points, images, labels).items():
                mean = processes.sum_(share * gradient.detach() if share else torch.zeros_like(gradient))
                sums[name] += number * mean.square()
            continue
        if not len(images):  # this process has no share of a small batch
            continue
        for some, theirs in zip(torch.split(images, at_once), torch.split(labels, at_once), strict=True):
            for name, gradients in per_image_gradients(points, some, theirs).items():
                sums[name] += gradients.detach().square().sum(0)
    if per_image:
        sums = {name: processes.sum_(value) for name, value in sums.items()}
    return {name: value / max(1, total) for name, value in sums.items()}


def quadratic_penalty(
    parameters: Mapping[str, Tensor], anchors: Mapping[str, Tensor], importance: Mapping[str, Tensor]
) -> Tensor:
    """½ Σ_i F_i (θ_i − θ*_i)² over the parameters that have an importance."""
    parts = [(weight * (parameters[name] - anchors[name]).square()).sum() for name, weight in importance.items()]
    return torch.stack(parts).sum() / 2
