"""Images at the size that a network takes, by one rule everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.data.images import Images


def resized(images: Tensor, size: int | None) -> Tensor:
    """(B, C, H, W) floats as squares of ``size`` pixels, smoothed where they shrink; None leaves them as they are."""
    if size is None or images.shape[-2:] == (size, size):
        return images
    shrinks = min(images.shape[-2:]) > size
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=shrinks)


@dataclass(frozen=True)
class ResizedImages:
    """Images of a dataset as a network will see them."""

    images: Images
    size: int | None

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape
        return (channels, self.size or height, self.size or width)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> Tensor:
        pixels = self.images.batch(indices)
        if self.size is None or pixels.shape[-2:] == (self.size, self.size):
            return pixels
        return resized(pixels.float(), self.size).round().clamp(0, 255).to(torch.uint8)
