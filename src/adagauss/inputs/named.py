"""What is wanted of images, and what is handed back: equally sized images with a name each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from adagauss.data.folders import PHOTO_SIZE
from adagauss.data.images import Images
from adagauss.utils.progress import Reporter

ImagesLike = str | os.PathLike[str] | Image.Image | npt.ArrayLike | Tensor | Iterable[Any]
"""Anything `read_images` understands."""
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Wanted:
    """How images are to be read."""

    shape: Shape | None = None
    """Channels, height and width that the learner takes; None if nothing is learned yet."""
    size: int | None = None
    """Side in pixels for a first task; None: as the images are, see `adagauss.inputs`."""
    skip_bad: bool = False
    """Leave out images that cannot be read, with one warning, instead of raising."""
    skip_option: str = "skip_bad=True"
    """What the user has to say for that, named in errors."""
    workers: int = 2
    """Threads that decode files."""
    reporter: Reporter = field(default_factory=Reporter)


@dataclass(frozen=True)
class NamedImages:
    """Equally sized images, each with a name."""

    images: Images
    names: tuple[str, ...]
    kept: Tensor
    """Positions of these images among those given: all, unless unreadable ones were left out."""
    given: int
    """How many were given."""

    @classmethod
    def in_memory(cls, images: Images, kept: list[int] | None = None, given: int | None = None) -> NamedImages:
        """Images named by their position."""
        positions = list(range(len(images))) if kept is None else kept
        return cls(images, tuple(map(str, positions)), torch.tensor(positions), given or len(positions))

    def __len__(self) -> int:
        return len(self.names)


def usual_side(shorter_sides: list[int]) -> int:
    """The side of squares for images with these shorter sides: their median, at most `PHOTO_SIZE`.

    >>> usual_side([64, 80, 4000]), usual_side([1000]), usual_side([64, 4000])
    (80, 224, 224)
    """
    return min(PHOTO_SIZE, sorted(shorter_sides)[len(shorter_sides) // 2])
