"""Images by index: the one interface through which everything reads pixels.

Pixels are uint8 tensors of shape ``(batch, channels, height, width)``, with one size for all images of a source. A
source may also have float32 pixels; these are on the same scale, 0..255.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from adagauss.errors import DataError

Label = Hashable
Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

CACHE_BYTES = 4 * 2**30
"""Memory for decoded images; beyond it, images in files are decoded at every use."""
EXACT_INTEGERS = 2**53
"""Floats represent every integer up to this one."""
CHECKED = 100
"""Images whose pixel range is checked before each task: files may have to be decoded for it."""
ANOTHER_SCALE = 8
"""Ratio of the brightest pixels above which another scale is suspected."""


class Images(Protocol):
    """A source of equally sized images, in memory or in files."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Tensor:
        """The images at ``indices`` as one tensor ``(len(indices), C, H, W)``, uint8 or float32 in 0..255."""


class ArrayImages:
    """Images held in memory as one uint8 tensor.

    Accepts ``(N, C, H, W)``, ``(N, H, W, C)`` or ``(N, H, W)``, uint8 in 0..255 or floats in 0..1. The channels
    can come first if there are fewer than rows and columns; 1, 3 or 4 channels can also come last.

    >>> ArrayImages(np.zeros((5, 8, 8), dtype=np.uint8)).shape
    (1, 8, 8)
    >>> ArrayImages(np.zeros((5, 6, 8, 8), dtype=np.uint8)).shape
    (6, 8, 8)
    """

    def __init__(self, pixels: Tensor | Array) -> None:
        self.pixels = to_uint8_nchw(torch.as_tensor(pixels))

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.pixels)

    def batch(self, indices: Tensor) -> Tensor:
        return self.pixels[indices]

    @classmethod
    def of_floats(cls, pixels: Tensor | Array) -> ArrayImages:
        """Create from floats in 0..1 with the precision of float32, not rounded to 256 levels.

        >>> ArrayImages.of_floats(np.full((5, 6, 8, 8), 0.1234)).batch(torch.tensor([0]))[0, 0, 0, 0] / 255
        tensor(0.1234)
        """
        pixels = to_nchw(torch.as_tensor(pixels))
        check_range(pixels)
        return cls.of_pixels(pixels.float().mul(255 if pixels.is_floating_point() else 1).contiguous())

    @classmethod
    def of_pixels(cls, pixels: Tensor | Array) -> ArrayImages:
        """Create from what `batch` returns."""
        images = cls.__new__(cls)
        images.pixels = torch.as_tensor(pixels)
        return images

    def __reduce__(self) -> tuple[Callable[[Array], ArrayImages], tuple[Array]]:
        # By value: torch would send a tensor to another process through shared memory, of which containers have little.
        return type(self).of_pixels, (self.pixels.cpu().numpy(),)


class Subset:
    """Some images of another source, without copying them."""

    def __init__(self, images: Images, indices: Tensor) -> None:
        self.images = images
        self.indices = indices

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.images.shape

    def __len__(self) -> int:
        return len(self.indices)

    def batch(self, indices: Tensor) -> Tensor:
        return self.images.batch(self.indices[indices])

    def crops(self, indices: Tensor, boxes_of: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Cut boxes out of whole pictures, if the source keeps them."""
        crops = getattr(self.images, "crops", None)
        found: Tensor | None = crops and crops(self.indices[indices], boxes_of)
        return found


class ConcatImages:
    """The images of several sources of one shape, one after another, without copying them."""

    def __init__(self, sources: Sequence[Images]) -> None:
        self.sources = list(sources)
        self._starts = torch.tensor([0, *map(len, self.sources)]).cumsum(0)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.sources[0].shape

    def __len__(self) -> int:
        return int(self._starts[-1])

    def batch(self, indices: Tensor) -> Tensor:
        pixels = torch.empty(len(indices), *self.shape, dtype=pixel_dtype(self.sources[0]))
        for source, start in zip(self.sources, self._starts.tolist(), strict=False):
            inside = (indices >= start) & (indices < start + len(source))
            if bool(inside.any()):
                pixels[inside] = source.batch(indices[inside] - start)
        return pixels


@dataclass(frozen=True)
class LabelledImages:
    """Images with their classes: image ``i`` is of class ``classes[targets[i]]``; see `normal_label`."""

    images: Images
    targets: Tensor
    classes: tuple[Label, ...]
    groups: Tensor | None = None
    """(N,) numbers: images of one group, such as frames of one video, are held out together. None: near-duplicates."""
    grouped_by: str = "near-duplicates"
    """The relation of the images of one group, for messages."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.targets):
            raise DataError(f"{len(self.images)} images but {len(self.targets)} labels: give one label per image")
        names = [normal_label(label) for label in self.classes]
        if names != list(self.classes):
            classes = tuple(dict.fromkeys(names))
            object.__setattr__(self, "classes", classes)
            object.__setattr__(self, "targets", torch.tensor([classes.index(name) for name in names])[self.targets])

    @classmethod
    def from_labels(cls, images: Images, labels: Sequence[Label]) -> LabelledImages:
        """Create from one label per image; classes are sorted if possible, else in order of first appearance."""
        plain: list[Any] = [normal_label(one.item() if isinstance(one, np.generic | Tensor) else one) for one in labels]
        check_labels_exact(plain)
        classes = list(dict.fromkeys(plain))
        with suppress(TypeError):  # labels of mixed types cannot be sorted
            classes = sorted(classes)
        index = {label: position for position, label in enumerate(classes)}
        return cls(images, torch.tensor([index[label] for label in plain], dtype=torch.long), tuple(classes))

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def labels(self) -> list[Label]:
        """One label per image."""
        return [self.classes[target] for target in self.targets.tolist()]

    def of_classes(self, classes: Sequence[Label]) -> LabelledImages:
        """Select the images of ``classes``, numbered in the given order."""
        position = {normal_label(label): index for index, label in enumerate(classes)}
        renumber = torch.tensor([position.get(label, -1) for label in self.classes], dtype=torch.long)
        targets = renumber[self.targets]
        kept = torch.nonzero(targets >= 0).flatten()
        return replace(self.rows(kept), targets=targets[kept], classes=tuple(classes))

    def rows(self, rows: Tensor) -> LabelledImages:
        """Select images by position, with the same classes."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, images=Subset(self.images, rows), targets=self.targets[rows], groups=groups)

    def counts(self) -> Tensor:
        """Number of images of each class."""
        return torch.bincount(self.targets, minlength=len(self.classes))


def normal_label(label: Label) -> Label:
    r"""Convert text to Unicode's composed form (NFC): file systems and keyboards write accents in several forms.

    >>> normal_label("Kohle\u0308"), normal_label(3)
    ('Kohlë', 3)
    """
    return unicodedata.normalize("NFC", label) if isinstance(label, str) else label


def check_labels_exact(labels: Iterable[object]) -> None:
    """Refuse integers beyond 2⁵³ if other labels are floats: as floats, several of them would be one label."""
    large, floats = None, False
    for label in labels:
        floats = floats or isinstance(label, float)
        if isinstance(label, int) and abs(label) > EXACT_INTEGERS:
            large = label
    if floats and large is not None:
        raise DataError(
            f"label {large} is too large among labels that are not whole numbers: beyond 2**53, several whole numbers "
            "are the same float. Use whole numbers or text for all labels"
        )


def check_one_kind(labels: Sequence[Label]) -> None:
    """Raise if some labels are text and some are numbers: they could not be sorted."""
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError("some labels are text and some are numbers: use one kind throughout")


def to_uint8_nchw(pixels: Tensor) -> Tensor:
    """Convert pixels of any common layout to uint8 ``(N, C, H, W)``; floats must lie in 0..1."""
    return to_uint8(to_nchw(pixels))


def to_nchw(pixels: Tensor) -> Tensor:
    """Convert pixels of any common layout to ``(N, C, H, W)``."""
    if pixels.ndim == 3:
        pixels = pixels.unsqueeze(1)
    if pixels.ndim == 4 and len(pixels) == 0:
        raise DataError("no images were given")
    if pixels.ndim != 4 or 0 in pixels.shape:
        raise DataError(
            "images must have shape (N, C, H, W), (N, H, W, C) or (N, H, W) with no empty axis; "
            f"got {tuple(pixels.shape)}"
        )
    axis = channel_axis(tuple(pixels.shape[1:]))
    # Scientific images have other numbers of channels. If these could also be rows, the layout is not guessed.
    if axis is None and pixels.shape[1] >= min(pixels.shape[2:]):
        raise DataError(
            f"images of shape {tuple(pixels.shape)} have neither 1, 3 or 4 channels nor fewer channels than rows and "
            "columns: give them as (N, C, H, W)"
        )
    return pixels.permute(0, 3, 1, 2) if axis == 2 else pixels


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of an image's channels, 0 or 2; None if neither can be. If both can, it is the first."""
    for channels in ((1, 3), (4,)):
        for axis in (0, 2):
            if shape[axis] in channels:
                return axis
    return None


def to_uint8(pixels: Tensor) -> Tensor:
    """Convert pixels to uint8, images along the first axis; floats must lie in 0..1, integers in 0..255."""
    if pixels.dtype != torch.uint8:
        check_range(pixels)
        pixels = (pixels * 255).round() if pixels.is_floating_point() else pixels
    return pixels.to(torch.uint8).contiguous()


def check_range(pixels: Tensor) -> None:
    """Raise unless floats lie in 0..1, and integers in 0..255."""
    bad = (~torch.isfinite(pixels)).flatten(1).any(1).nonzero().flatten()
    if len(bad):
        raise DataError(
            f"{len(bad)} of {len(pixels)} images hold NaN or infinite pixels (first: image {int(bad[0])}): "
            "remove or repair them"
        )
    kind, limit = ("float", 1) if pixels.is_floating_point() else ("integer", 255)
    low, high = pixels.min().item(), pixels.max().item()
    if low < 0 or high > limit:
        raise DataError(
            f"{kind} images must lie in 0..{limit}, these lie in {low:g}..{high:g}: scale them (16-bit by 257), or "
            "give uint8 pixels in 0..255"
        )


def pixel_dtype(images: Images) -> torch.dtype:
    """The type of the pixels: uint8 or float32."""
    return images.batch(torch.zeros(1, dtype=torch.long)).dtype


def evenly_spaced(count: int, most: int) -> Tensor:
    """Return at most ``most`` evenly spaced positions below ``count``, including the first and the last.

    >>> evenly_spaced(10, 4).tolist(), evenly_spaced(2, 4).tolist()
    ([0, 3, 6, 9], [0, 1])
    """
    if count <= most:
        return torch.arange(count)
    return torch.arange(most) * (count - 1) // max(1, most - 1)


PixelRange = tuple[int, int]
"""The smallest and largest pixel value, within 0..255."""


def pixel_range(images: Images, most: int = CHECKED) -> PixelRange:
    """Find the smallest and largest pixel of ``most`` evenly spaced images, or of all if there are fewer.

    >>> pixel_range(ArrayImages(np.array([[[0, 7]], [[3, 200]]], dtype=np.uint8)))
    (0, 200)
    """
    pixels = images.batch(evenly_spaced(len(images), most))
    return int(pixels.min()), int(pixels.max())


def merge_pixel_ranges(before: PixelRange | None, now: PixelRange) -> PixelRange:
    """Extend the pixel range of earlier tasks by a new one; warns if they seem to be on different scales."""
    if before is None:
        return now
    darkest, earlier, brightest = min(before[0], now[0]), before[1], now[1]
    low, high = sorted((earlier, brightest))
    if high >= ANOTHER_SCALE * max(1, low):
        darker = "they seem" if brightest < earlier else "earlier images seem"
        warnings.warn(
            f"the brightest pixel of these images is {brightest}, of earlier tasks {earlier}: {darker} to be on "
            "another scale (0..1 given as whole numbers, or divided by 255 twice); give uint8 pixels in 0..255 or "
            "floats in 0..1",
            stacklevel=3,
        )
    return darkest, high
