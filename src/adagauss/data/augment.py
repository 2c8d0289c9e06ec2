"""Augmentation of whole batches: one call per operation, with random parameters for each image.

Colour operations equal Pillow's level by level. Most of them interpolate between the image and a degenerate version of
it (`blend`).

Geometric operations use continuous coordinates: pixel ``(row, column)`` covers ``[column, column + 1) ×
[row, row + 1)`` and is sampled at its centre. A matrix ``(a, b, c, d, e, f)`` maps output points to input points:
``x' = a x + b y + c``, ``y' = d x + e y + f``. This is the convention of Pillow's ``Image.transform``.

TrivialAugment (Müller & Hutter, 2021) draws one operation and one of 31 magnitudes. AutoAugment (Cubuk et al., 2019)
draws one of 25 pairs of operations found by search on CIFAR-10, each with its own probability and one of 10 magnitudes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal, Self

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, field_validator
from torch import Tensor

from adagauss.core.config import Config
from adagauss.data.images import Images, pixel_dtype
from adagauss.errors import ConfigError, DataError
from adagauss.utils.runtime import to_device

GREY = 128
"""AutoAugment's grey level for points outside the image, as in the published code of the methods that use it."""


class Augmentation(Config):
    """Random augmentation of a batch of images, in the order of the fields.

    Every image draws its own parameters from the given CPU generator: a generator with the same state gives the same
    batch on any device.

    Args:
        crop_padding: black pixels added around an image before a window of its size is cut out; 0 is off.
        resized_crop: cut out a random box and stretch it to the full size.
        resized_crop_scale: smallest and largest share of the image's area in that box.
        flip: mirror left to right with probability 0.5.
        brightness: multiply by a factor uniform in ``[max(0, 1 - brightness), 1 + brightness]``; 0 is off.
        policy: ``trivial`` for TrivialAugment (wide), ``autoaugment`` for AutoAugment's CIFAR-10 policy.
        cutout: side in pixels of a square blackened around a random pixel; 0 is off.

    >>> batch = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
    >>> Augmentation(policy="trivial")(batch, torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    crop_padding: NonNegativeInt = 4
    resized_crop: bool = False
    resized_crop_scale: tuple[float, float] = (0.08, 1.0)
    flip: bool = True
    brightness: NonNegativeFloat = 0.0
    policy: Literal["none", "trivial", "autoaugment"] = "none"
    cutout: NonNegativeInt = 0

    @field_validator("resized_crop_scale")
    @classmethod
    def _check_scale(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if not 0 < scale[0] <= scale[1] <= 1:
            raise ValueError("must be two shares of the area with 0 < smallest <= largest <= 1")
        return scale

    @classmethod
    def none(cls) -> Self:
        """Return an augmentation that only converts images to floats."""
        return cls(crop_padding=0, flip=False)

    @property
    def only_flips(self) -> bool:
        """Whether images are at most mirrored."""
        plain = Augmentation(crop_padding=0, resized_crop_scale=self.resized_crop_scale)
        return self in (plain, plain.with_changes(flip=False))

    def check(self, images: Images) -> None:
        """Raise if pixels are floats and an operation would round them to whole grey levels."""
        off = {"policy": "none", "brightness": 0.0, "resized_crop": False}
        used = {name: value for name, value in off.items() if getattr(self, name) != value}
        if used and pixel_dtype(images) != torch.uint8:
            raise ConfigError(
                "the pixels are floats, which this augmentation would round to 256 levels: set "
                + ", ".join(f"augmentation.{name}={value}".lower() for name, value in used.items())
            )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment uint8 images ``(B, C, H, W)``; returns float32 images in 0..1 on the same device."""
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(
                f"augmentation takes uint8 images of shape (B, C, H, W); "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        return self.draw(len(images), (images.shape[2], images.shape[3]), generator)(images)

    def draw(self, count: int, size: tuple[int, int], generator: torch.Generator) -> Changes:
        """Draw the parameters for ``count`` images of height and width ``size``, before the images are read."""
        steps: list[tuple[Callable[..., Tensor], Mapping[str, Tensor]]] = []
        if self.crop_padding:
            tops, lefts = torch.randint(2 * self.crop_padding + 1, (2, count), generator=generator)
            steps.append((partial(padded_crop, padding=self.crop_padding), {"tops": tops, "lefts": lefts}))
        if self.resized_crop:
            tries = torch.rand(4, count, _ATTEMPTS, generator=generator).transpose(0, 1)
            steps.append((partial(resized_crop, scale=self.resized_crop_scale), {"tries": tries}))
        if self.flip:
            steps.append((flip_where, {"chosen": torch.rand(count, generator=generator) < 0.5}))
        if self.brightness:
            low, high = max(0.0, 1 - self.brightness), 1 + self.brightness
            steps.append((brightness, {"factors": low + (high - low) * torch.rand(count, generator=generator)}))
        if self.policy != "none":
            trivial = self.policy == "trivial"
            drawn = draw_trivial(count, generator) if trivial else draw_auto(count, size, generator)
            apply = partial(apply_operations, fill=0 if trivial else GREY)
            steps += [(apply, {"operations": one, "magnitudes": two}) for one, two in drawn]
        steps.append((to_float, {}))
        if self.cutout:
            rows, columns = (torch.randint(side, (count,), generator=generator) for side in size)
            steps.append((partial(cutout, side=self.cutout), {"rows": rows, "columns": columns}))
        return Changes(tuple(steps))


@dataclass(frozen=True)
class Changes:
    """Operations on a batch with their random parameters, one row per image; calling it applies them in order."""

    steps: tuple[tuple[Callable[..., Tensor], Mapping[str, Tensor]], ...]

    def __call__(self, images: Tensor) -> Tensor:
        for change, drawn in self.steps:
            images = change(images, **drawn)
        return images

    def read(self, images: Images, rows: Tensor, device: torch.device) -> Tensor:
        """Read and augment the images at ``rows``; random crops are cut from whole pictures where these are kept."""
        (change, drawn), *others = self.steps
        crops = getattr(images, "crops", None)
        if crops is not None and isinstance(change, partial) and change.func is resized_crop:
            found = crops(rows, partial(boxes_of, drawn["tries"], **change.keywords))
            if found is not None:
                return Changes(tuple(others))(to_device(found, device))
        return self(to_device(images.batch(rows), device))

    def of(self, rows: Tensor) -> Changes:
        """Select the parameters of some images of the batch, to augment each as within the whole batch."""
        return Changes(
            tuple((change, {name: one[rows] for name, one in drawn.items()}) for change, drawn in self.steps)
        )

    def flips(self, count: int) -> Tensor:
        """Return which of the ``count`` images are mirrored."""
        chosen = [drawn["chosen"] for change, drawn in self.steps if change is flip_where]
        return chosen[0] if chosen else torch.zeros(count, dtype=torch.bool)


def mirrored(count: int) -> Changes:
    """Flip all images left to right and convert them to floats."""
    return Changes(((flip_where, {"chosen": torch.ones(count, dtype=torch.bool)}), (to_float, {})))


def unchanged(count: int = 1) -> Changes:
    """Convert all images to floats."""
    return Changes(((to_float, {}),))


def to_float(images: Tensor) -> Tensor:
    """Convert grey levels 0..255 to float32 in 0..1."""
    return images.to(torch.float32).div_(255)


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply every grey level by the factor."""
    return blend(torch.zeros((), device=images.device), images, factors)


def color(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply the difference from the greyscale version by the factor; single-channel images are unchanged."""
    return blend(luminance(images).float(), images, factors)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply the difference from the mean grey, rounded to a whole level, by the factor."""
    grey = luminance(images)[:, 0].flatten(1)
    pixels = grey.shape[1]
    means = (2 * grey.sum(1) + pixels).div(2 * pixels, rounding_mode="floor")
    return blend(means.float().view(-1, 1, 1, 1), images, factors)


def sharpness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply the difference from the 3 × 3 mean (the middle counts five times; border pixels are unchanged)."""
    smooth = images.float()
    rows = smooth[..., :-2, :] + smooth[..., 1:-1, :] + smooth[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * smooth[..., 1:-1, 1:-1]
    smooth[..., 1:-1, 1:-1] = total.mul_(1 / 13).round_()
    return blend(smooth, images, factors)


def blend(degenerate: Tensor, images: Tensor, factors: Tensor) -> Tensor:
    """Interpolate: ``d + factor · (v - d)``, clipped to 0..255; the fraction is dropped."""
    scale = per_image(factors, images).float()
    return ((images - degenerate).mul_(scale).add_(degenerate)).clamp_(0, 255).to(torch.uint8)


def per_image(values: Tensor, images: Tensor) -> Tensor:
    """Reshape one value per image to ``(B, 1, 1, 1)``, on the device of the images."""
    return to_device(values, images.device).view(-1, 1, 1, 1)


def luminance(images: Tensor) -> Tensor:
    """Convert to grey ``(B, 1, H, W)`` with the ITU-R 601 weights in 16-bit fixed point."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().chunk(3, dim=1)
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest ``bits`` of the 8 bits of a grey level."""
    dropped = 8 - per_image(bits.int(), images)
    return ((images.int() >> dropped) << dropped).to(torch.uint8)


def solarize(images: Tensor, thresholds: Tensor) -> Tensor:
    """Invert the grey levels at or above the threshold."""
    return torch.where(images < per_image(thresholds, images), images, 255 - images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0..255: ``(v - low) · 255 / (high - low)``; a channel with one level is unchanged."""
    # Double precision: single precision would sometimes be off by one grey level.
    low = images.amin((2, 3)).double().unsqueeze(-1)
    high = images.amax((2, 3)).double().unsqueeze(-1)
    full = torch.full_like(low, 255)  # `255 / tensor` would round twice, through the reciprocal
    scale = full / (high - low).clamp_(min=1)
    ramp = torch.arange(256, dtype=torch.float64, device=images.device)
    stretched = (ramp * scale - low * scale).clamp_(0, 255)
    return lookup(images, torch.where(high > low, stretched, ramp).to(torch.uint8))


def equalize(images: Tensor) -> Tensor:
    """Equalize the histogram of each channel: the number of darker pixels in units of the step, half a step rounded up.

    The step is one 255th of the number of pixels below the brightest occurring level; if it is less than one pixel, the
    channel is unchanged.
    """
    batch, channels = images.shape[:2]
    bins = torch.arange(batch * channels, device=images.device).view(batch, channels, 1) * 256
    codes = (images.flatten(2) + bins).flatten()
    # Not bincount, which makes a GPU wait to check the codes.
    counts = torch.zeros(batch * channels * 256, dtype=torch.long, device=images.device)
    counts = counts.scatter_add_(0, codes, torch.ones_like(codes)).view(batch, channels, 256)
    upto = counts.cumsum(-1)
    brightest = counts.gather(-1, images.amax((2, 3)).long().unsqueeze(-1))
    step = (upto[..., -1:] - brightest).div_(255, rounding_mode="floor")
    levels = (upto - counts + step // 2).div_(step.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    return lookup(images, torch.where(step > 0, levels, torch.arange(256, device=images.device)).to(torch.uint8))


def lookup(images: Tensor, tables: Tensor) -> Tensor:
    """Replace grey level ``v`` of image ``i``, channel ``c`` by ``tables[i, c, v]``."""
    return tables.gather(2, images.flatten(2).long()).view(images.shape)


# Interpolated values are truncated as in Pillow; without this margin a grey level of 99.999 in float32 would become 99.
_TRUNCATION_MARGIN = 1 / 128
_FAR_AWAY = 3.0


def affine(images: Tensor, matrices: Tensor, fill: int = 0) -> Tensor:
    """Resample uint8 images ``(B, C, H, W)`` by matrices ``(B, 6)``; points outside the image are ``fill``."""
    height, width = images.shape[-2:]
    a, b, c, d, e, f = to_device(matrices.float(), images.device)[:, :, None, None].unbind(1)
    x, y = pixel_centres(width, images.device), pixel_centres(height, images.device)[:, None]
    u = _grid_points((a * x - 0.5 * width) + (b * y + c), width)
    v = _grid_points((d * x - 0.5 * height) + (e * y + f), height)
    grid = torch.stack((u, v), dim=-1)
    raised = images.float().add_(_TRUNCATION_MARGIN)
    values = F.grid_sample(raised - fill, grid, padding_mode="zeros", align_corners=False) + fill
    return values.to(torch.uint8)


def pixel_centres(size: int, device: torch.device) -> Tensor:
    """Return ``0.5, 1.5, ..., size - 0.5``."""
    return torch.arange(size, dtype=torch.float32, device=device) + 0.5


def _grid_points(points: Tensor, size: int) -> Tensor:
    """Convert points along one axis, counted from its middle, to the units of `grid_sample`; those outside go far away.

    Points within the image are clipped to the centres of the outermost pixels, where nothing outside is mixed in.
    """
    outside = (points < -size / 2) | (points >= size / 2)
    held = points.clamp_((1 - size) / 2, (size - 1) / 2)
    return held.mul_(2 / size).masked_fill_(outside, _FAR_AWAY)


def _matrices(*entries: Tensor | float) -> Tensor:
    """Stack six entries, each a number or one value per image, to affine matrices ``(B, 6)``."""
    values = next(entry for entry in entries if isinstance(entry, Tensor))
    return torch.stack([entry if isinstance(entry, Tensor) else torch.full_like(values, entry) for entry in entries], 1)


def rotate_matrices(degrees: Tensor, height: int, width: int) -> Tensor:
    """Return rotations counter-clockwise about the centre ``(W/2, H/2)``; rows count downwards."""
    angles = torch.deg2rad(degrees)
    cos, sin = angles.cos(), angles.sin()
    x, y = width / 2, height / 2
    return _matrices(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


_ATTEMPTS = 10
_RATIOS = (3 / 4, 4 / 3)


def flip_where(images: Tensor, chosen: Tensor) -> Tensor:
    """Flip the chosen images left to right."""
    # copying whole images by index is much faster than selecting pixels with a broadcast mask
    both = torch.cat((images, images.flip(-1)))
    rows = torch.arange(len(images)) + len(images) * chosen
    return both.index_select(0, to_device(rows, images.device))


def padded_crop(images: Tensor, padding: int, tops: Tensor, lefts: Tensor) -> Tensor:
    """Cut windows of the original size out of images padded with ``padding`` black pixels on every side.

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
    corners = to_device(tops * stride + lefts, images.device)
    planes = torch.arange(batch * channels, device=images.device).view(batch, channels, 1) * plane
    starts = planes + (corners[:, None] + torch.arange(height, device=images.device) * stride)[:, None]
    return runs.index_select(0, starts.flatten()).view(images.shape)


def resized_crop(images: Tensor, tries: Tensor, scale: tuple[float, float]) -> Tensor:
    """Stretch a random box of each image ``(B, C, H, W)`` to the full size, bilinearly; see `boxes_of`."""
    height, width = images.shape[-2:]
    boxes = boxes_of(tries, torch.tensor([height, width]).expand(len(images), 2), scale)
    top, left, box_height, box_width = to_device(boxes.float(), images.device)[:, :, None].unbind(1)

    def stretch(size: int, start: Tensor, length: Tensor) -> Tensor:
        points = start + pixel_centres(size, start.device) * (length / size)
        held = torch.minimum(torch.maximum(points, start + 0.5), start + length - 0.5)  # outermost pixels of the box
        return held * (2 / size) - 1

    u = stretch(width, left, box_width)[:, None, :].expand(-1, height, -1)
    v = stretch(height, top, box_height)[:, :, None].expand(-1, -1, width)
    values = F.grid_sample(images.float(), torch.stack((u, v), dim=-1), align_corners=False)
    return values.round_().to(torch.uint8)


def boxes_of(tries: Tensor, sizes: Tensor, scale: tuple[float, float]) -> Tensor:
    """Return random boxes ``(N, 4)``: top, left, height and width, in images of ``sizes`` ``(N, 2)``.

    ``tries`` ``(N, 4, 10)`` are uniform in 0..1: the area is a uniform share of the image, the log aspect ratio
    uniform in 3/4..4/3. The first try that fits into the image is used; if none fits, the largest central box with an
    allowed ratio.
    """
    height, width = sizes[:, :1].float(), sizes[:, 1:].float()
    shares, ratios, down, right = tries.unbind(1)
    areas = height * width * (scale[0] + (scale[1] - scale[0]) * shares)
    low, high = math.log(_RATIOS[0]), math.log(_RATIOS[1])
    aspects = torch.exp(low + (high - low) * ratios)
    heights, widths = (areas / aspects).sqrt().round(), (areas * aspects).sqrt().round()
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    tops, lefts = (down * (height - heights + 1)).floor(), (right * (width - widths + 1)).floor()
    boxes = torch.stack((tops, lefts, heights, widths), dim=-1)
    whole = torch.minimum(sizes, (sizes.double().flip(1) / _RATIOS[0]).round().long())
    central = torch.cat((torch.div(sizes - whole, 2, rounding_mode="floor"), whole), dim=1)
    first = torch.where(fits, torch.arange(_ATTEMPTS), _ATTEMPTS).amin(1)
    return torch.cat((boxes.long(), central[:, None]), dim=1)[torch.arange(len(sizes)), first]


def cutout(images: Tensor, side: int, rows: Tensor, columns: Tensor) -> Tensor:
    """Blacken a square of ``side`` pixels around ``(row, column)`` in each image, cut at the borders."""

    def covered(centres: Tensor, size: int) -> Tensor:
        offsets = torch.arange(size) - (centres - side // 2)[:, None]
        return (offsets >= 0) & (offsets < side)

    height, width = images.shape[-2:]
    black = covered(rows, height)[:, :, None] & covered(columns, width)[:, None, :]
    return images * to_device(~black[:, None], images.device)


MATRICES: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "shear_x": lambda slopes, height, width: _matrices(1, slopes, 0, 0, 1, 0),
    "shear_y": lambda slopes, height, width: _matrices(1, 0, 0, slopes, 1, 0),
    "translate_x": lambda pixels, height, width: _matrices(1, 0, -pixels.trunc(), 0, 1, 0),
    "translate_y": lambda pixels, height, width: _matrices(1, 0, 0, 0, 1, -pixels.trunc()),
    "rotate": rotate_matrices,
}
"""Affine matrices by operation: magnitudes are slopes, whole pixels (fractions are dropped) or degrees."""
COLOURS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda images, magnitudes: brightness(images, 1 + magnitudes),
    "contrast": lambda images, magnitudes: contrast(images, 1 + magnitudes),
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": lambda images, _: autocontrast(images),
    "equalize": lambda images, _: equalize(images),
    "invert": lambda images, _: 255 - images,
    "color": lambda images, magnitudes: color(images, 1 + magnitudes),
    "sharpness": lambda images, magnitudes: sharpness(images, 1 + magnitudes),
}
"""Colour operations: magnitudes are a factor minus one, bits, a threshold, or unused."""
OPERATIONS = ("identity", *MATRICES, *COLOURS)
"""Names of all operations; an operation's number is its position here."""


def apply_operations(images: Tensor, operations: Tensor, magnitudes: Tensor, fill: int = 0) -> Tensor:
    """Apply operation number ``operations[i]`` with strength ``magnitudes[i]`` to image ``i`` of ``(B, C, H, W)``.

    Operations and magnitudes ``(B,)`` are on the CPU. Pixels that lie outside the image get the grey level ``fill``.
    """
    changed = images.clone()
    height, width = images.shape[2:]
    order = operations.argsort(stable=True)
    ends = torch.bincount(operations, minlength=len(OPERATIONS)).cumsum(0)[:-1].tolist()
    rows, values = (one.tensor_split(ends) for one in (to_device(order, images.device), magnitudes[order]))
    for name, there, strengths in zip(OPERATIONS, rows, values, strict=True):
        if name != "identity" and len(there):
            if name in MATRICES:
                changed[there] = affine(images[there], MATRICES[name](strengths, height, width), fill)
            else:
                changed[there] = COLOURS[name](images[there], strengths)
    return changed


_TRIVIAL_OPERATIONS = torch.tensor([i for i, name in enumerate(OPERATIONS) if name != "invert"])
# Operations whose magnitude may also be negative.
_SIGNED = torch.tensor([name in {*MATRICES, "brightness", "contrast", "color", "sharpness"} for name in OPERATIONS])

Operations = tuple[Tensor, Tensor]
"""One operation per image, by number, and its strength."""

# Pairs of operation, probability and strength bin (0 if the operation has no strength).
_AUTO_PAIRS = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)
_AUTO_OPERATIONS = torch.tensor([[OPERATIONS.index(step[0]) for step in pair] for pair in _AUTO_PAIRS])
_AUTO_PROBABILITIES = torch.tensor([[step[1] for step in pair] for pair in _AUTO_PAIRS])
_AUTO_LEVELS = torch.tensor([[step[2] for step in pair] for pair in _AUTO_PAIRS])


def draw_trivial(count: int, generator: torch.Generator) -> list[Operations]:
    """Draw one operation per image, all equally likely, with uniformly drawn strength and sign."""
    operations = _TRIVIAL_OPERATIONS[torch.randint(len(_TRIVIAL_OPERATIONS), (count,), generator=generator)]
    bins = torch.randint(31, (count,), generator=generator)
    strengths = _strengths(31, slope=0.99, shift=(32, 32), degrees=135, change=0.99, lost_bits=6)
    return [(operations, strengths[operations, bins] * _draw_signs(operations, generator))]


def draw_auto(count: int, size: tuple[int, int], generator: torch.Generator) -> list[Operations]:
    """Draw one of the 25 pairs per image; each of its two operations is applied with its own probability."""
    pairs = torch.randint(len(_AUTO_PAIRS), (count,), generator=generator)
    shift = (150 / 331 * size[1], 150 / 331 * size[0])  # the search shifted images of 331 pixels by up to 150
    strengths = _strengths(10, slope=0.3, shift=shift, degrees=30, change=0.9, lost_bits=4)
    drawn = []
    for step in range(2):
        operations, bins = _AUTO_OPERATIONS[pairs, step], _AUTO_LEVELS[pairs, step]
        magnitudes = strengths[operations, bins] * _draw_signs(operations, generator)
        applied = torch.rand(count, generator=generator) < _AUTO_PROBABILITIES[pairs, step]
        drawn.append((operations * applied, magnitudes))  # number 0 is the identity
    return drawn


def _draw_signs(operations: Tensor, generator: torch.Generator) -> Tensor:
    """Draw ±1 with probability 0.5 each for operations with a direction; the others get 1."""
    signs = 2 * torch.randint(2, operations.shape, generator=generator) - 1
    return torch.where(_SIGNED[operations], signs, 1)


@lru_cache(maxsize=8)
def _strengths(
    bins: int, slope: float, shift: tuple[float, float], degrees: float, change: float, lost_bits: int
) -> Tensor:
    """Return magnitudes ``(operation, bin)``: equal steps from no effect at bin 0 to the strongest at the last."""
    ends = {"shear_x": slope, "shear_y": slope, "translate_x": shift[0], "translate_y": shift[1], "rotate": degrees}
    ends |= dict.fromkeys(("brightness", "color", "contrast", "sharpness"), change)
    rows = {name: torch.linspace(0, end, bins) for name, end in ends.items()}
    rows["posterize"] = 8 - (torch.arange(bins) / ((bins - 1) / lost_bits)).round()
    rows["solarize"] = torch.linspace(255, 0, bins)
    return torch.stack([rows.get(name, torch.zeros(bins)) for name in OPERATIONS])
