"""Crops of two photographs that come with scikit-learn: patches that are those of no task.

Small patches of one photograph are much like those of any other. A dictionary that is learned from photographs at hand
everywhere depends neither on what the first task shows nor on how small it is.
"""

from __future__ import annotations

import io
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from adagauss.data.images import ArrayImages
from adagauss.errors import DataError

NAMES = ("china.jpg", "flower.jpg")
ZOOMS = (1.5, 2.1, 2.9, 4.1, 5.7, 8.0)
"""Pixels of the photograph in one pixel of a crop: images of objects are mostly reduced photographs."""
CROPS = 2000
"""Patches near each other are alike: there are more crops than there are patches in each."""


@lru_cache(maxsize=1)
def photographs() -> tuple[Tensor, ...]:
    """The photographs as (3, H, W) floats on the scale 0..255."""
    spec = find_spec("sklearn")  # its place only: to import it takes longer than all of this
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "datasets" / "images"
    found = []
    for name in NAMES:
        try:
            encoded = (folder / name).read_bytes()
        except OSError as error:
            raise DataError(
                f"scikit-learn was installed without its photograph {name}, from which patches are drawn: "
                "install it anew, or draw them from the first task (dictionary_from=first_task)"
            ) from error
        picture = Image.open(io.BytesIO(encoded)).convert("RGB")
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        found.append(pixels.view(picture.height, picture.width, 3).permute(2, 0, 1).float())
    return tuple(found)


def photograph_crops(shape: tuple[int, int, int], generator: torch.Generator, count: int = CROPS) -> ArrayImages:
    """Images of a shape (channels, height, width), cut at random places from the photographs in several sizes.

    Colours are exchanged at random, since two photographs do not show all of them; grey images are their mean, and
    other numbers of channels are random mixtures of them.
    """
    channels, height, width = shape
    sources = [_reduced(picture, zoom, height, width) for picture in photographs() for zoom in ZOOMS]
    crops = torch.empty(count, channels, height, width, dtype=torch.uint8)
    for crop, number in zip(crops, torch.randint(len(sources), (count,), generator=generator).tolist(), strict=True):
        source = sources[number]
        top, left = (
            int(torch.randint(have - need + 1, (), generator=generator))
            for have, need in zip(source.shape[1:], (height, width), strict=True)
        )
        crop.copy_(_in_channels(source[:, top : top + height, left : left + width], channels, generator))
    return ArrayImages(crops)


def _in_channels(cut: Tensor, channels: int, generator: torch.Generator) -> Tensor:
    """A piece of a photograph in so many channels."""
    if channels == 3:
        return cut[torch.randperm(3, generator=generator)]
    if channels == 1:
        return cut.float().mean(0, keepdim=True).round()
    shares = torch.rand(channels, 3, generator=generator)
    return torch.einsum("kc,chw->khw", shares / shares.sum(1, keepdim=True), cut.float()).round()


def _reduced(picture: Tensor, zoom: float, height: int, width: int) -> Tensor:
    """A photograph at another size, at least that of the crops."""
    tall, wide = picture.shape[1:]
    zoom = min(zoom, tall / height, wide / width)
    size = max(height, round(tall / zoom)), max(width, round(wide / zoom))
    smaller = F.interpolate(picture[None], size, mode="bilinear", antialias=True)[0]
    return smaller.round().clamp(0, 255).to(torch.uint8)
