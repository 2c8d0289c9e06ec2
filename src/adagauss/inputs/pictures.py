"""PIL images and arrays of any sizes, one after another, as images of one size."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from adagauss.data.decode import fitted, upright
from adagauss.data.files import some_named
from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.images import ArrayImages
from adagauss.errors import DataError
from adagauss.inputs.arrays import as_picture, channel_axis, image_batch, is_array, plain_array
from adagauss.inputs.named import NamedImages, Shape, Wanted, usual_side

logger = logging.getLogger(__name__)

GREY = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"})
"""Modes of PIL images without colour."""


@dataclass
class _Gathered:
    """Images as they come: brought to their size at once where it is known, otherwise kept small."""

    wanted: Wanted
    pixels: list[Tensor] = field(default_factory=list)
    sides: list[int] = field(default_factory=list)
    as_is: bool = True
    """Whether all of them are small and have one size, which they may keep."""

    def add(self, pixels: Tensor) -> None:
        """One more image, uint8 (C, H, W)."""
        height, width = pixels.shape[1:]
        self.sides.append(min(height, width))
        shape, size = self.wanted.shape, self.wanted.size
        if shape is not None:
            pixels = of_shape(pixels, shape)
        elif size is not None:
            pixels = of_shape(pixels, (len(pixels), size, size))
        elif max(height, width) > PHOTO_SIZE:
            # A generator may yield more photographs than fit into memory; none of them will be larger than this.
            self.as_is = False
            side = min(PHOTO_SIZE, height, width)
            pixels = of_shape(pixels, (len(pixels), side, side))
        elif self.pixels and pixels.shape[1:] != self.pixels[0].shape[1:]:
            self.as_is = False
        self.pixels.append(pixels)

    def together(self) -> ArrayImages:
        """All of them at one size."""
        channels, height, width = max(map(len, self.pixels)), *self.pixels[0].shape[1:]
        if not self.as_is:
            height = width = usual_side(self.sides)
        return ArrayImages(torch.stack([of_shape(pixels, (channels, height, width)) for pixels in self.pixels]))


def gathered(items: Iterable[Any], wanted: Wanted) -> NamedImages:
    """PIL images and arrays, one image each, from a list or a generator."""
    found, bad, position = _Gathered(wanted), {}, -1
    kept: list[int] = []
    for position, item in enumerate(items):
        try:
            found.add(_one(item, position, wanted))
            kept.append(position)
        except _UnreadableError as error:
            bad[position] = str(error)
    given = position + 1
    if not given:
        raise DataError("no images were given")
    if bad and not wanted.skip_bad:
        raise DataError(
            f"{len(bad)} of {given} images cannot be decoded: {some_named(bad, 'image {}'.format)}. Repair or remove "
            f"them, or skip them with {wanted.skip_option}."
        )
    if not kept:
        raise DataError(f"none of {given} images can be decoded: {some_named(bad, 'image {}'.format)}")
    if bad:
        logger.warning("skipped %d of %d images: %s", len(bad), given, some_named(bad, "image {}".format))
    return NamedImages.in_memory(found.together(), kept, given)


def batch_images(pixels: Tensor, wanted: Wanted) -> NamedImages:
    """uint8 images (N, C, H, W) that are in memory already."""
    if _fits(tuple(pixels.shape[1:]), wanted):
        return NamedImages.in_memory(ArrayImages(pixels))
    found = _Gathered(wanted)
    with wanted.reporter.progress("resizing images", len(pixels)) as advance:
        for image in pixels:
            found.add(image)
            advance()
    return NamedImages.in_memory(found.together())


def of_shape(pixels: Tensor, shape: Shape) -> Tensor:
    """An image (C, H, W) with other channels and another size, by the rules for image files."""
    channels, height, width = shape
    if pixels.shape == shape:
        return pixels
    picture = as_picture(pixels).convert("L" if channels == 1 else "RGB")
    return torch.from_numpy(fitted(picture, height, width))


class _UnreadableError(Exception):
    """A picture whose file is damaged."""


def _one(item: object, position: int, wanted: Wanted) -> Tensor:
    if isinstance(item, Image.Image):
        return _from_picture(item, wanted)
    if not is_array(item):
        raise DataError(_no_image(item, position))
    array = plain_array(item, f"image {position}")
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and channel_axis(array.shape) is None):
        raise DataError(
            f"item {position} has shape {array.shape}: each item must be one image, (H, W), (H, W, C) or (C, H, W), "
            "with 1, 3 or 4 channels; give a batch as one array, or its images one by one"
        )
    try:
        return image_batch(array, "one")[0]
    except DataError as error:
        raise DataError(f"image {position}: {error}") from None


def _from_picture(picture: Image.Image, wanted: Wanted) -> Tensor:
    channels = wanted.shape[0] if wanted.shape else 1 if picture.mode in GREY else 3
    try:
        mode = upright(picture, channels)
    except MemoryError:
        raise
    except Exception as error:  # image decoders raise nearly any exception on damaged files
        raise _UnreadableError(str(error) or type(error).__name__) from None
    return torch.from_numpy(fitted(mode, mode.height, mode.width))


def _no_image(item: object, position: int) -> str:
    kind = type(item).__name__
    if isinstance(item, tuple | list):
        return f"item {position} is a {kind}: give images and labels as two arguments, not in pairs"
    if isinstance(item, bytes | bytearray):
        return f"item {position} is bytes: open them first, with PIL.Image.open(io.BytesIO(...))"
    return f"item {position} is {kind}: each item must be a path, a PIL image or an array"


def _fits(shape: tuple[int, ...], wanted: Wanted) -> bool:
    if wanted.shape is not None:
        return shape == wanted.shape
    if wanted.size is not None:
        return shape[1:] == (wanted.size, wanted.size)
    return max(shape[1:]) <= PHOTO_SIZE
