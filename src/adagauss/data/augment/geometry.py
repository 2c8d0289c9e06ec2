"""Shear, translation and rotation of a batch, each image by its own amount, through one bilinear resampler.

Coordinates are continuous: pixel ``(row, column)`` covers ``[column, column + 1) × [row, row + 1)`` and is
sampled at its centre. A matrix ``(a, b, c, d, e, f)`` gives the point from which an output point takes its value:
``x' = a x + b y + c``, ``y' = d x + e y + f``. This is the convention of Pillow's ``Image.transform``.
"""

from __future__ import annotations

import math

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


_ATTEMPTS = 10
_RATIOS = (3 / 4, 4 / 3)


def horizontal_flip(images: Tensor) -> Tensor:
    """All images mirrored left to right."""
    return images.flip(-1)


def flip_where(images: Tensor, chosen: Tensor) -> Tensor:
    """The chosen images mirrored, the others as they are."""
    # copying whole images by index is much faster than selecting pixels with a broadcast mask
    both = torch.cat((images, horizontal_flip(images)))
    rows = torch.arange(len(images)) + len(images) * chosen
    return both.index_select(0, rows.to(images.device))


def padded_crop(images: Tensor, padding: int, tops: Tensor, lefts: Tensor) -> Tensor:
    """Windows of the original size, from images padded with ``padding`` black pixels on every side.

    Args:
        images: uint8 ``(B, C, H, W)``.
        padding: pixels added on each side.
        tops: first row of each window in the padded image, in ``0..2 padding``.
        lefts: first column of each window, in ``0..2 padding``.
    """
    batch, channels, height, width = images.shape
    padded = F.pad(images, (padding,) * 4).contiguous()
    plane, stride = padded.shape[-2] * padded.shape[-1], padded.shape[-1]
    # Every run of `width` pixels in memory is a row of this overlapping view, so that the crop copies whole image rows
    # instead of single pixels.
    runs = padded.as_strided((max(padded.numel() - width + 1, 0), width), (1, 1))
    planes = torch.arange(batch * channels).view(batch, channels, 1) * plane
    starts = planes + ((tops[:, None] + torch.arange(height)) * stride + lefts[:, None])[:, None]
    return runs.index_select(0, starts.flatten().to(images.device)).view(images.shape)


def resized_crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Each image's box stretched to the full size, bilinearly, without looking beyond the box.

    Args:
        images: uint8 ``(B, C, H, W)``.
        boxes: ``(B, 4)`` whole numbers: top, left, height, width.
    """
    height, width = images.shape[-2:]
    top, left, box_height, box_width = boxes.to(images.device, torch.float32)[:, :, None].unbind(1)
    u = _stretch(width, left, box_width)[:, None, :].expand(-1, height, -1)
    v = _stretch(height, top, box_height)[:, :, None].expand(-1, -1, width)
    values = F.grid_sample(images.float(), torch.stack((u, v), dim=-1), align_corners=False)
    return values.round_().to(torch.uint8)


def _stretch(size: int, start: Tensor, length: Tensor) -> Tensor:
    """Where ``size`` pixels take their values from along a box: ``start + centre · length / size``.

    Clipped to the centres of the box's outermost pixels, in coordinates from -1 to 1.
    """
    points = start + pixel_centres(size, start.device) * (length / size)
    held = torch.minimum(torch.maximum(points, start + 0.5), start + length - 0.5)
    return held * (2 / size) - 1


def draw_boxes(count: int, size: tuple[int, int], scale: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Random boxes ``(count, 4)``: area a uniform share of the image, log aspect ratio uniform in 3/4..4/3.

    The first of ten tries that fits into the image is used; if none fits, the largest central box with an allowed
    ratio.
    """
    height, width = size
    shares, ratios, down, right = torch.rand(4, count, _ATTEMPTS, generator=generator)
    areas = height * width * (scale[0] + (scale[1] - scale[0]) * shares)
    low, high = math.log(_RATIOS[0]), math.log(_RATIOS[1])
    aspects = torch.exp(low + (high - low) * ratios)
    heights, widths = (areas / aspects).sqrt().round(), (areas * aspects).sqrt().round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    tops, lefts = (down * (height - heights + 1)).floor(), (right * (width - widths + 1)).floor()
    tries = torch.stack((tops, lefts, heights, widths), dim=-1)
    candidates = torch.cat((tries, _central_box(height, width).expand(count, 1, 4)), dim=1)
    first = torch.where(fits, torch.arange(_ATTEMPTS), _ATTEMPTS).amin(1)
    return candidates[torch.arange(count), first].long()


def _central_box(height: int, width: int) -> Tensor:
    box_height = min(height, round(width / _RATIOS[0]))
    box_width = min(width, round(height * _RATIOS[1]))
    box = ((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)
    return torch.tensor(box, dtype=torch.float32)


def cutout(images: Tensor, side: int, rows: Tensor, columns: Tensor) -> Tensor:
    """A black square of ``side`` pixels around each image's centre ``(row, column)``, cut at the borders."""
    height, width = images.shape[-2:]
    covered = _span(rows, side, height)[:, :, None] & _span(columns, side, width)[:, None, :]
    return images * ~covered[:, None].to(images.device)


def _span(centres: Tensor, side: int, size: int) -> Tensor:
    """Which of ``size`` positions lie in ``[centre - side // 2, centre - side // 2 + side)``."""
    offsets = torch.arange(size) - (centres - side // 2)[:, None]
    return (offsets >= 0) & (offsets < side)
