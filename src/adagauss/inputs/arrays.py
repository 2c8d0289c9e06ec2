"""Arrays and tensors of any layout as uint8 images; the rule for arrays that can be read in two ways."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from adagauss.data.images import to_uint8
from adagauss.errors import DataError

Array = npt.NDArray[Any]
Layout = Literal["one", "grey images", "images"]

OPAQUE, TRANSPARENT = (1, 3), (4,)
"""Numbers of channels without and with transparency; the former are looked for first."""


def is_array(value: object) -> bool:
    """Whether it is an array or a tensor, and not a list of something."""
    return isinstance(value, np.ndarray | Tensor)


def plain_array(value: object, what: str = "images") -> Array:
    """Numbers as an array that torch can take over; an error that says what they are otherwise."""
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy()
    try:
        array: Array = np.asarray(value)
    except ValueError as error:
        raise DataError(
            f"{what}: these lists do not make an array ({error}): give a list of arrays, one per image"
        ) from None
    if array.dtype.kind == "b":
        raise DataError(f"{what} hold True and False: multiply them by 255 and give uint8 pixels")
    if array.dtype.kind not in "uif":
        raise DataError(f"{what} must hold numbers, uint8 in 0..255 or floats in 0..1; these hold {array.dtype} values")
    if array.dtype.kind in "ui" and array.dtype != np.uint8:
        array = array.astype(np.int64)
    # Torch shares memory only with arrays that are writable, in native order and have no negative strides.
    return np.require(array, dtype=array.dtype.newbyteorder("="), requirements=["C", "W"])


def layout(shape: tuple[int, ...], wanted: tuple[int, int, int] | None = None, count: int | None = None) -> Layout:
    """How an array of this shape is to be read.

    Three axes can be grey images (N, H, W) or one image (C, H, W) or (H, W, C). It is one image if its first or last
    axis has 1, 3 or 4 entries, with two exceptions, in which it is grey images: as many labels (``count``) as entries
    of the first axis are given, and more than one; or the learner takes grey images (``wanted``) and the first axis
    is the one that could be channels or the images have just its size.

    >>> layout((3, 28, 28)), layout((3, 28, 28), wanted=(1, 28, 28)), layout((3, 28, 28), count=3)
    ('one', 'grey images', 'grey images')
    >>> layout((50, 28, 28)), layout((28, 28, 3), wanted=(1, 28, 28)), layout((28, 28)), layout((5, 3, 9, 9))
    ('grey images', 'one', 'one', 'images')
    """
    if len(shape) == 2:
        return "one"
    if len(shape) == 4:
        return "images"
    if len(shape) != 3:
        raise DataError(
            "images must have shape (N, C, H, W), (N, H, W, C), (N, H, W), or, for one image, (C, H, W), (H, W, C) or "
            f"(H, W); got {shape}"
        )
    axis = channel_axis(shape)
    grey = wanted is not None and wanted[0] == 1
    if axis is None or (count == shape[0] and count != 1):
        return "grey images"
    return "grey images" if grey and wanted is not None and (axis == 0 or shape[1:] == wanted[1:]) else "one"


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of an image's channels, 0 or 2; None if neither can be. If both can, it is the first."""
    for channels in (OPAQUE, TRANSPARENT):
        for axis in (0, 2):
            if shape[axis] in channels:
                return axis
    return None


def image_batch(array: Array, how: Layout) -> Tensor:
    """uint8 ``(N, C, H, W)`` with one or three channels."""
    if 0 in array.shape:
        raise DataError("no images were given" if len(array) == 0 else f"images of shape {array.shape} are empty")
    pixels = torch.from_numpy(array)
    if how == "grey images":
        return to_uint8(pixels).unsqueeze(1)
    if how == "one":
        pixels = pixels.unsqueeze(0)
        if pixels.ndim == 3:
            return to_uint8(pixels).unsqueeze(1)
    axis = channel_axis(tuple(pixels.shape[1:]))
    if axis is None:
        raise DataError(f"images must have 1, 3 or 4 channels, first or last; got shape {array.shape}")
    if axis == 2:
        pixels = pixels.permute(0, 3, 1, 2)
    pixels = to_uint8(pixels)
    return on_white(pixels) if pixels.shape[1] in TRANSPARENT else pixels


def on_white(pixels: Tensor) -> Tensor:
    """(N, 4, H, W) with transparency as (N, 3, H, W), by the rule for transparent image files: a·c + (1 − a)·255."""
    share = pixels[:, 3:].float() / 255
    return (pixels[:, :3].float() * share + 255 * (1 - share)).round().to(torch.uint8)


def as_picture(pixels: Tensor) -> Image.Image:
    """(C, H, W) uint8 as a PIL image, in mode L or RGB."""
    return Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy())
