"""Scoring features against Gaussians, compared with the broadcast form of the published code."""

from __future__ import annotations

import torch
from torch import Tensor

from adagauss.core.linalg import squared_distances, whiten

from .measure import Ratio, best_times, mebibytes, milliseconds, peak_extra_bytes


def gaussians(classes: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(classes, size, size, generator=generator) / size**0.5
    covariances = factors @ factors.mT + torch.eye(size)
    return torch.randn(classes, size, generator=generator), covariances


def broadcast_form(points: Tensor, means: Tensor, inverses: Tensor) -> Tensor:
    """(B,C,1,S) @ (1,C,S,S) @ (B,C,S,1)."""
    difference = points.unsqueeze(1) - means
    return (difference.unsqueeze(2) @ inverses.unsqueeze(0) @ difference.unsqueeze(3)).squeeze((2, 3))


def run() -> list[Ratio]:
    means, covariances = gaussians(100, 64)
    points = torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
    inverses, whitening = torch.linalg.inv(covariances), whiten(means, covariances)
    difference = broadcast_form(points, means, inverses) - squared_distances(points, whitening)
    assert difference.abs().max() < 1e-2

    def ours() -> Tensor:
        return squared_distances(points, whitening)

    def theirs() -> Tensor:
        return broadcast_form(points, means, inverses)

    slow, fast = best_times([theirs, ours], rounds=8)
    heavy, light = peak_extra_bytes(theirs), max(1, peak_extra_bytes(ours))
    many = whiten(*gaussians(1000, 128))
    crowd = torch.randn(256, 128)
    thousand = peak_extra_bytes(lambda: squared_distances(crowd, many))
    return [
        Ratio("scoring 256 features, 100 classes, S=64", milliseconds(slow), milliseconds(fast), slow / fast, ">= 10"),
        Ratio("extra memory of the same", mebibytes(heavy), mebibytes(light), heavy / light, ">= 10"),
        Ratio(
            "extra memory, 1,000 classes, S=128",
            "1024 MiB allowed",
            mebibytes(thousand),
            2**30 / max(1, thousand),
            ">= 1",
        ),
    ]
