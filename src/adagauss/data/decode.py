"""One image file as square uint8 pixels, whatever mode it was saved in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image

Pixels = npt.NDArray[np.uint8]

DECODER = f"1;pillow-{PIL.__version__}"
"""Part of every cache key: raise the number when `decode_image` starts to give other pixels."""


def decode_image(path: Path, size: int, channels: int = 3) -> Pixels:
    """The image as ``(channels, size, size)``: shorter side resized to ``size``, centre kept.

    Transparent parts are shown on white. Sixteen-bit grey is scaled to eight bits. Rotation notes of cameras
    (EXIF) are not applied, as in the usual loaders that published results come from.
    """
    with Image.open(path) as image:
        # Large JPEGs are read at a reduced scale, never below twice the wanted size, so that the
        # antialiased resize below still decides how the result looks.
        image.draft(None, (2 * size, 2 * size))
        picture = _in_mode(image, "L" if channels == 1 else "RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    box = (left, top, left + side, top + side)
    square = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box=box))
    return np.ascontiguousarray(square[None] if channels == 1 else square.transpose(2, 0, 1))


def check_header(path: Path) -> None:
    """Raise if the file does not even begin like an image; far quicker than decoding it."""
    with Image.open(path):
        pass


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _from_deep_grey(image).convert(mode)
    if {"A", "a"} & set(image.getbands()) or "transparency" in image.info:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(paper, layer).convert(mode)
    return image.convert(mode)


def _from_deep_grey(image: Image.Image) -> Image.Image:
    # Pillow would clip these to 255 instead of scaling them. Older versions open 16-bit PNGs in mode "I".
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        raise ValueError(f"pixels of mode {image.mode!r} have no fixed range; save it with 8 or 16 bits")
    deep: npt.NDArray[Any] = np.asarray(image).astype(np.float64)
    return Image.fromarray(np.rint(deep / 257).clip(0, 255).astype(np.uint8))
