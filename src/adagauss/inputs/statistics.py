"""Mean and deviation of pixels, which normalise the images of a learner."""

from __future__ import annotations

import torch

from adagauss.data.images import Images
from adagauss.utils.progress import Reporter

BATCH = 256


def pixel_statistics(images: Images, reporter: Reporter | None = None) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, of values in 0..1: exact, from counts of the 256 levels."""
    channels = images.shape[0]
    counts = torch.zeros(channels, 256, dtype=torch.float64)
    with (reporter or Reporter()).progress("brightness of images", len(images)) as advance:
        for start in range(0, len(images), BATCH):
            pixels = images.batch(torch.arange(start, min(start + BATCH, len(images)))).cpu()
            counts += torch.stack([pixels[:, channel].flatten().bincount(minlength=256) for channel in range(channels)])
            advance(step=len(pixels))
    shares = counts / counts.sum(1, keepdim=True)
    levels = torch.linspace(0, 1, 256, dtype=torch.float64)
    mean = shares @ levels
    std = (shares * (levels - mean.unsqueeze(1)).square()).sum(1).sqrt()
    # A channel without any contrast is left at its scale.
    return mean.tolist(), torch.where(std > 0, std, torch.ones_like(std)).tolist()
