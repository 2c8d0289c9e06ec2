"""The augmentation of a training batch, as one configured call."""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, field_validator
from torch import Tensor

from adagauss.config import Config
from adagauss.data.augment import colour, crops
from adagauss.data.augment.policies import auto_augment, trivial_augment
from adagauss.errors import DataError


class Augmentation(Config):
    """Random changes to a batch of images, in the order of the fields.

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
        """No augmentation, only the conversion to floats."""
        return cls(crop_padding=0, flip=False)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augmented float32 images in 0..1 from uint8 images ``(B, C, H, W)``, on the same device."""
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(
                f"augmentation takes uint8 images of shape (B, C, H, W); "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        if self.crop_padding:
            images = _random_crop(images, self.crop_padding, generator)
        if self.resized_crop:
            boxes = crops.draw_boxes(
                len(images), (images.shape[2], images.shape[3]), self.resized_crop_scale, generator
            )
            images = crops.resized_crop(images, boxes)
        if self.flip:
            images = crops.flip_where(images, torch.rand(len(images), generator=generator) < 0.5)
        if self.brightness:
            images = _random_brightness(images, self.brightness, generator)
        if self.policy == "trivial":
            images = trivial_augment(images, generator)
        elif self.policy == "autoaugment":
            images = auto_augment(images, generator)
        floats = to_float(images)
        return _random_cutout(floats, self.cutout, generator) if self.cutout else floats


def to_float(images: Tensor) -> Tensor:
    """Grey levels 0..255 as float32 in 0..1."""
    return images.to(torch.float32).div_(255)


def _random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    tops, lefts = torch.randint(2 * padding + 1, (2, len(images)), generator=generator)
    return crops.padded_crop(images, padding, tops, lefts)


def _random_brightness(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    low, high = max(0.0, 1 - strength), 1 + strength
    return colour.brightness(images, low + (high - low) * torch.rand(len(images), generator=generator))


def _random_cutout(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    rows = torch.randint(images.shape[-2], (len(images),), generator=generator)
    columns = torch.randint(images.shape[-1], (len(images),), generator=generator)
    return crops.cutout(images, side, rows, columns)
