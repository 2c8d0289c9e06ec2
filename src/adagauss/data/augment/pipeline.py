"""The augmentation of a training batch, as one configured call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Self

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, field_validator
from torch import Tensor

from adagauss.core.config import Config
from adagauss.data.augment import colour, geometry
from adagauss.data.augment.operations import apply_operations, draw_auto, draw_trivial
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
        return self.draw(len(images), (images.shape[2], images.shape[3]), generator)(images)

    def draw(self, count: int, size: tuple[int, int], generator: torch.Generator) -> Changes:
        """What happens to each of ``count`` images of height and width ``size``; the images need not be there yet."""
        steps: list[Step] = []
        if self.crop_padding:
            tops, lefts = torch.randint(2 * self.crop_padding + 1, (2, count), generator=generator)
            steps.append(Step(partial(geometry.padded_crop, padding=self.crop_padding), {"tops": tops, "lefts": lefts}))
        if self.resized_crop:
            boxes = geometry.draw_boxes(count, size, self.resized_crop_scale, generator)
            steps.append(Step(geometry.resized_crop, {"boxes": boxes}))
        if self.flip:
            steps.append(Step(geometry.flip_where, {"chosen": torch.rand(count, generator=generator) < 0.5}))
        if self.brightness:
            low, high = max(0.0, 1 - self.brightness), 1 + self.brightness
            factors = low + (high - low) * torch.rand(count, generator=generator)
            steps.append(Step(colour.brightness, {"factors": factors}))
        if self.policy != "none":
            drawn = draw_trivial(count, generator) if self.policy == "trivial" else draw_auto(count, size, generator)
            steps += [Step(apply_operations, {"operations": one, "magnitudes": two}) for one, two in drawn]
        steps.append(Step(to_float, {}))
        if self.cutout:
            rows, columns = (torch.randint(side, (count,), generator=generator) for side in size)
            steps.append(Step(partial(geometry.cutout, side=self.cutout), {"rows": rows, "columns": columns}))
        return Changes(tuple(steps))


class Step(NamedTuple):
    """One change of a batch, and its parameters: one row per image."""

    change: Callable[..., Tensor]
    drawn: Mapping[str, Tensor]


@dataclass(frozen=True)
class Changes:
    """What was drawn for the images of a batch. Calling it with these images changes them."""

    steps: tuple[Step, ...]

    @classmethod
    def none(cls, mirrored: bool = False) -> Self:
        """Nothing is drawn: images become floats, and mirror images if wished."""
        plain = Step(to_float, {})
        return cls((Step(geometry.horizontal_flip, {}), plain) if mirrored else (plain,))

    @classmethod
    def mirroring(cls, chosen: Tensor) -> Self:
        """The chosen images become mirror images; nothing else is changed."""
        return cls((Step(geometry.flip_where, {"chosen": chosen}), Step(to_float, {})))

    def __call__(self, images: Tensor) -> Tensor:
        for step in self.steps:
            images = step.change(images, **step.drawn)
        return images

    def of(self, rows: Tensor) -> Changes:
        """What was drawn for some of the images: each is changed as it is within the whole batch."""
        return Changes(
            tuple(Step(change, {name: one[rows] for name, one in drawn.items()}) for change, drawn in self.steps)
        )


def to_float(images: Tensor) -> Tensor:
    """Grey levels 0..255 as float32 in 0..1."""
    return images.to(torch.float32).div_(255)
