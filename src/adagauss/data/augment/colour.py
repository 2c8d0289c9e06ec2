"""Colour operations on uint8 batches, each image with its own strength, equal to Pillow's level by level.

Operations that map each grey level independently are lookup tables ``(B, C or 1, 256)``, so that a policy can
apply all of them in one `lookup`. The others mix the image with a degenerate version of itself (`blend`).
"""

from __future__ import annotations

import torch
from torch import Tensor


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Every grey level times the factor."""
    return blend(torch.zeros((), device=images.device), images, factors)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Difference from the image's mean grey times the factor."""
    return lookup(images, contrast_tables(images, factors))


def color(images: Tensor, factors: Tensor) -> Tensor:
    """Difference from the greyscale version times the factor; single-channel images are unchanged."""
    return blend(luminance(images).float(), images, factors)


def sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Difference from the smoothed version times the factor."""
    return blend(smooth(images), images, factors)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep only the highest ``bits`` of the 8 bits of a grey level."""
    return lookup(images, posterize_tables(images, bits))


def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """Invert the grey levels at or above the threshold."""
    return lookup(images, solarize_tables(images, thresholds))


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel so that it reaches from 0 to 255."""
    return lookup(images, autocontrast_tables(images))


def equalize(images: Tensor) -> Tensor:
    """Make each channel's grey levels about equally frequent."""
    return lookup(images, equalize_tables(images))


def invert(images: Tensor) -> Tensor:
    """``255 - v``."""
    return 255 - images


def lookup(images: Tensor, tables: Tensor) -> Tensor:
    """Replace grey level ``v`` of image ``i``, channel ``c`` by ``tables[i, c, v]``."""
    tables = tables.expand(-1, images.shape[1], -1)
    return tables.gather(2, images.flatten(2).long()).view(images.shape)


def blend(degenerate: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    """``d + factor · (v - d)`` clipped to 0..255; the fraction is dropped."""
    scale = factors.to(images.device, torch.float32).view(-1, *[1] * (images.ndim - 1))
    return ((images - degenerate).mul_(scale).add_(degenerate)).clamp_(0, 255).to(torch.uint8)


def luminance(images: Tensor) -> Tensor:
    """Grey version ``(B, 1, H, W)`` by the ITU-R 601 weights in 16-bit fixed point."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().chunk(3, dim=1)
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16


def smooth(images: Tensor) -> Tensor:
    """Rounded mean over 3 × 3 pixels, the middle one counted five times, as floats; border pixels are unchanged."""
    values = images.float()
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * values[..., 1:-1, 1:-1]
    values[..., 1:-1, 1:-1] = total.mul_(1 / 13).round_()
    return values


def brightness_tables(images: Tensor, factors: Tensor) -> Tensor:
    """Tables of `brightness`."""
    return brightness(_ramps(images), factors)


def contrast_tables(images: Tensor, factors: Tensor) -> Tensor:
    """Tables of `contrast`; the mean grey is rounded to a whole level."""
    grey = luminance(images)[:, 0].flatten(1)
    pixels = grey.shape[1]
    means = (2 * grey.sum(1) + pixels).div(2 * pixels, rounding_mode="floor")
    return blend(means.float().view(-1, 1, 1), _ramps(images), factors)


def posterize_tables(images: Tensor, bits: Tensor) -> Tensor:
    """Tables of `posterize`."""
    dropped = (8 - bits.int()).to(images.device).view(-1, 1, 1)
    return ((_ramps(images).int() >> dropped) << dropped).to(torch.uint8)


def solarize_tables(images: Tensor, thresholds: Tensor) -> Tensor:
    """Tables of `solarize`."""
    ramps = _ramps(images)
    return torch.where(ramps < thresholds.to(images.device).view(-1, 1, 1), ramps, 255 - ramps)


def autocontrast_tables(images: Tensor) -> Tensor:
    """Tables of `autocontrast`: ``(v - low) · 255 / (high - low)``; a channel with one level is unchanged."""
    # Double precision, on the CPU since not every accelerator has it: single precision would sometimes be off by one
    # grey level.
    low = images.amin((2, 3)).to("cpu", torch.float64).unsqueeze(-1)
    high = images.amax((2, 3)).to("cpu", torch.float64).unsqueeze(-1)
    full = torch.tensor(255, dtype=torch.float64)  # `255 / tensor` would round twice, through the reciprocal
    scale = full / (high - low).clamp_(min=1)
    ramp = torch.arange(256, dtype=torch.float64)
    stretched = (ramp * scale - low * scale).clamp_(0, 255)
    return torch.where(high > low, stretched, ramp).to(torch.uint8).to(images.device)


def equalize_tables(images: Tensor) -> Tensor:
    """Tables of `equalize`: the number of darker pixels in units of the step, half a step rounded up.

    The step is one 255th of the number of pixels below the brightest occurring level; if it is less than one pixel, the
    channel is unchanged.
    """
    counts = histograms(images)
    upto = counts.cumsum(-1)
    brightest = counts.gather(-1, images.amax((2, 3)).long().unsqueeze(-1))
    step = (upto[..., -1:] - brightest).div_(255, rounding_mode="floor")
    divisor = step.clamp(min=1)
    levels = (upto - counts + step // 2).div_(divisor, rounding_mode="floor").clamp_(max=255)
    return torch.where(step > 0, levels.to(torch.uint8), _ramps(images))


def invert_tables(images: Tensor) -> Tensor:
    """Tables of `invert`."""
    return 255 - _ramps(images)


def histograms(images: Tensor) -> Tensor:
    """Number of pixels ``(B, C, 256)`` of each grey level in each channel."""
    batch, channels = images.shape[:2]
    bins = torch.arange(batch * channels, device=images.device).view(batch, channels, 1) * 256
    codes = (images.flatten(2) + bins).flatten()
    return torch.bincount(codes, minlength=batch * channels * 256).view(batch, channels, 256)


def _ramps(images: Tensor) -> Tensor:
    """The table that changes nothing, ``(B, 1, 256)``."""
    return torch.arange(256, dtype=torch.uint8, device=images.device).expand(len(images), 1, 256)
