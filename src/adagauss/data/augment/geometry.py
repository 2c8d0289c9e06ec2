"""Shear, translation and rotation of a batch, each image by its own amount, through one bilinear resampler.

Coordinates are continuous: pixel ``(row, column)`` covers ``[column, column + 1) × [row, row + 1)`` and is
sampled at its centre. A matrix ``(a, b, c, d, e, f)`` gives the point from which an output point takes its value:
``x' = a x + b y + c``, ``y' = d x + e y + f``. This is the convention of Pillow's ``Image.transform``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Interpolated values are truncated as in Pillow; without this margin a grey level of 99.999 in float32 would become 99.
_TRUNCATION_MARGIN = 1 / 128
_FAR_AWAY = 3.0


def shear_x(images: Tensor, slopes: Tensor) -> Tensor:
    """Rows move sideways: ``x' = x + slope · y``."""
    return affine(images, shear_x_matrices(slopes, *images.shape[-2:]))


def shear_y(images: Tensor, slopes: Tensor) -> Tensor:
    """Columns move up or down: ``y' = y + slope · x``."""
    return affine(images, shear_y_matrices(slopes, *images.shape[-2:]))


def translate_x(images: Tensor, pixels: Tensor) -> Tensor:
    """Move to the right by whole pixels (fractions are dropped), to the left if negative."""
    return affine(images, translate_x_matrices(pixels, *images.shape[-2:]))


def translate_y(images: Tensor, pixels: Tensor) -> Tensor:
    """Move down by whole pixels (fractions are dropped), up if negative."""
    return affine(images, translate_y_matrices(pixels, *images.shape[-2:]))


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn counter-clockwise about the centre of the image."""
    return affine(images, rotate_matrices(degrees, *images.shape[-2:]))


def affine(images: Tensor, matrices: Tensor) -> Tensor:
    """Resample uint8 images ``(B, C, H, W)`` by matrices ``(B, 6)``; what lies outside the image is black."""
    height, width = images.shape[-2:]
    a, b, c, d, e, f = matrices.to(images.device, torch.float32)[:, :, None, None].unbind(1)
    x, y = pixel_centres(width, images.device), pixel_centres(height, images.device)[:, None]
    u = _black_outside((a * x - 0.5 * width) + (b * y + c), width)
    v = _black_outside((d * x - 0.5 * height) + (e * y + f), height)
    grid = torch.stack((u, v), dim=-1)
    raised = images.float().add_(_TRUNCATION_MARGIN)
    values = F.grid_sample(raised, grid, padding_mode="zeros", align_corners=False)
    return values.to(torch.uint8)


def pixel_centres(size: int, device: torch.device) -> Tensor:
    """``0.5, 1.5, ..., size - 0.5``."""
    return torch.arange(size, dtype=torch.float32, device=device) + 0.5


def _black_outside(points: Tensor, size: int) -> Tensor:
    """Points along one axis, counted from its middle, as `grid_sample` takes them: from -1 to 1.

    Points within the image are clipped to the centres of the outermost pixels, where nothing outside is mixed in;
    points outside get a coordinate far away, so that they are black.
    """
    outside = (points < -size / 2) | (points >= size / 2)
    held = points.clamp_((1 - size) / 2, (size - 1) / 2)
    return held.mul_(2 / size).masked_fill_(outside, _FAR_AWAY)


def shear_x_matrices(slopes: Tensor, height: int, width: int) -> Tensor:
    """Matrices of `shear_x`; the top edge stays where it is."""
    zero, one = torch.zeros_like(slopes), torch.ones_like(slopes)
    return torch.stack((one, slopes, zero, zero, one, zero), dim=1)


def shear_y_matrices(slopes: Tensor, height: int, width: int) -> Tensor:
    """Matrices of `shear_y`; the left edge stays where it is."""
    zero, one = torch.zeros_like(slopes), torch.ones_like(slopes)
    return torch.stack((one, zero, zero, slopes, one, zero), dim=1)


def translate_x_matrices(pixels: Tensor, height: int, width: int) -> Tensor:
    """Matrices of `translate_x`."""
    zero, one = torch.zeros_like(pixels), torch.ones_like(pixels)
    return torch.stack((one, zero, -pixels.trunc(), zero, one, zero), dim=1)


def translate_y_matrices(pixels: Tensor, height: int, width: int) -> Tensor:
    """Matrices of `translate_y`."""
    zero, one = torch.zeros_like(pixels), torch.ones_like(pixels)
    return torch.stack((one, zero, zero, zero, one, -pixels.trunc()), dim=1)


def rotate_matrices(degrees: Tensor, height: int, width: int) -> Tensor:
    """Matrices of `rotate`: by ``-θ`` about ``(W/2, H/2)``, as rows count downwards."""
    angles = torch.deg2rad(degrees)
    cos, sin = angles.cos(), angles.sin()
    x, y = width / 2, height / 2
    return torch.stack((cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y), dim=1)
