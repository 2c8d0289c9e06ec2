"""Convert everything users have as images into one source of equally sized, named images.

- a path: an image file, or a folder, which stands for all image files in it and below
- a list or generator of paths: files and folders, in this order
- a PIL image, a list or a generator of them
- an array or tensor of 4 axes: (N, C, H, W) or (N, H, W, C), with 1, 3 or 4 channels
- an array or tensor of 3 axes: grey images (N, H, W), or one image (H, W, C) or (C, H, W); see `image_batch`
- an array or tensor of 2 axes: one grey image
- a list or generator of arrays or tensors: one image each, of any sizes

**Values** are uint8 in 0..255 or floats in 0..1. Transparent pixels (a fourth channel) are composited onto white.

**Size.** A trained learner fixes size and channels. An image of other proportions is stretched, cropped or padded, as
`ImageSpec.resize_mode` says. For the first task the images decide: pixels in memory that all have one size of at most
224 pixels keep it; everything else becomes squares of 224 pixels, or of the median shorter side if that is smaller, so
that images are not enlarged. An explicit size overrides this.

**Names** are paths: relative to the folder if one folder was given, else unchanged. Images in memory are named by
their position: "0", "1", ...
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from adagauss.data.decode import ResizeMode, as_picture, fitted, image_size, upright
from adagauss.data.folders import PHOTO_SIZE, FileImages, folders_in, image_files, images_in, usable
from adagauss.data.images import (
    ArrayImages,
    Images,
    LabelledImages,
    channel_axis,
    evenly_spaced,
    pixel_dtype,
    to_uint8_nchw,
)
from adagauss.errors import DataError
from adagauss.utils.files import open_regular, resolve_path
from adagauss.utils.progress import Advance, Reporter, ignore

logger = logging.getLogger(__name__)

ImagesLike = str | os.PathLike[str] | Image.Image | npt.ArrayLike | Tensor | Iterable[Any]
"""Anything `read_images` accepts."""
GroupsLike = Sequence[Hashable] | npt.NDArray[Any] | Tensor | str | None
"""One value per image, or a regular expression for the names of files; see `NamedImages.grouped`."""
Array = npt.NDArray[Any]
Shape = tuple[int, int, int]

PHOTOGRAPHS = (str, os.PathLike, Image.Image)
"""Types of single images that are photographs rather than arrays."""
MEASURED_FILES = 64
"""Files whose headers are read to choose a common size."""
STATISTICS_BATCH = 256


@dataclass(frozen=True)
class ImageSpec:
    """How images are read."""

    shape: Shape | None = None
    """Channels, height and width of the learner; None before the first task."""
    size: int | None = None
    """Side in pixels for the first task; None: chosen from the images."""
    skip_bad: bool = False
    """Skip images that cannot be decoded, with one warning, instead of raising."""
    reporter: Reporter = field(default_factory=Reporter)
    resize_mode: ResizeMode = "crop"
    """How images of other proportions are resized; see `adagauss.data.decode.fitted`."""


@dataclass(frozen=True)
class NamedImages:
    """Equally sized images, each with a name."""

    images: Images
    names: tuple[str, ...]
    kept: Tensor
    """Positions of these images in the input: all, unless unreadable ones were skipped."""
    given: int
    """Number of images in the input."""

    def __len__(self) -> int:
        return len(self.names)

    def grouped(self, groups: GroupsLike) -> Tensor | None:
        """Number the groups of the images: by one value per given image, or by a regular expression for their names.

        The first group of the expression, or its whole match, is the value; each name without a match is a group.

        >>> NamedImages(ArrayImages(torch.zeros(3, 1, 2, 2)), ("a/1.png", "b/2.png", "b/3.png"),
        ...     torch.arange(3), 3).grouped("^[^/]+/")
        tensor([0, 1, 1])
        """
        if groups is None:
            return None
        if isinstance(groups, str):
            if not groups:
                raise DataError("groups: the pattern is empty, so all images would be one group: omit it")
            try:
                matches = [re.search(groups, name) for name in self.names]
            except re.error as error:
                raise DataError(f"groups: {groups!r} is not a regular expression ({error})") from None
            if not any(matches):
                raise DataError(
                    f"groups: {groups!r} matches none of {len(self)} file names, such as {self.names[0]!r}. Give a "
                    "regular expression for the part of the path that files of one object share"
                )
            values: list[Hashable] = [
                ("alone", name) if one is None else (one[1] if one.re.groups else one[0])
                for name, one in zip(self.names, matches, strict=True)
            ]
        else:
            if len(groups) != self.given:
                raise DataError(f"{self.given} images but {len(groups)} groups: give one value per image")
            given = groups.tolist() if isinstance(groups, np.ndarray | Tensor) else groups
            values = [given[position] for position in self.kept.tolist()]
        numbers: dict[Hashable, int] = {}
        return torch.tensor([numbers.setdefault(value, len(numbers)) for value in values])


def relation(groups: GroupsLike) -> str:
    """The relation of images of one group, for messages."""
    if groups is None:
        return LabelledImages.grouped_by
    return f"one group of the pattern {groups!r}" if isinstance(groups, str) else "one group"


def read_images(given: ImagesLike, spec: ImageSpec | None = None, count: int | None = None) -> NamedImages:
    """Read images of any accepted kind as images of one size, with names.

    Args:
        given: see the module's docstring.
        spec: size, channels and error handling.
        count: the number of labels, if there are labels; it decides how ambiguous arrays are read.

    >>> read = read_images([np.zeros((20, 30, 3), np.uint8), np.zeros((3, 10, 10), np.uint8)])
    >>> read.images.shape, read.names
    ((3, 20, 20), ('0', '1'))
    """
    spec = spec or ImageSpec()
    images, first = peek(given)
    if isinstance(first, str | os.PathLike):
        alone, files = isinstance(images, str | os.PathLike), list[Path]()
        for position, item in enumerate([images] if alone else images):
            if not isinstance(item, str | os.PathLike):
                raise DataError(
                    f"item {position} is {type(item).__name__}, those before it are paths: give one kind, all paths or "
                    "all images"
                )
            path = resolve_path(Path(item))
            files += images_in(path) if path.is_dir() else [path]
        names = [str(file.relative_to(path) if alone and path.is_dir() else file) for file in files]
        return file_images(files, names, spec)
    if isinstance(images, Image.Image):
        images = [images]
    elif isinstance(images, np.ndarray | Tensor) or isinstance(first, list | Number):  # nested lists of numbers
        array = plain_array(list(images) if isinstance(first, list | Number) else images)
        images = image_batch(array, spec.shape, count)
        if _shape_on_arrival(images[0], spec) == images[0].shape:
            numbers = range(len(images))
            return NamedImages(ArrayImages(images), tuple(map(str, numbers)), torch.tensor(numbers), len(images))
    if not isinstance(images, Sequence | Tensor):  # the number of images of a generator is unknown
        return _stacked(images, spec, ignore)
    with spec.reporter.progress("resizing images", len(images)) as advance:
        return _stacked(images, spec, advance)


def peek(images: ImagesLike) -> tuple[Any, object]:
    """Return the images and the first one, which shows their kind; a single path or picture is its own first one.

    For an array or a tensor, the first one is None.

    >>> same, first = peek(Image.new("RGB", (2, 2)) for _ in range(3))
    >>> isinstance(first, PHOTOGRAPHS), len(list(same))
    (True, 3)
    """
    if isinstance(images, PHOTOGRAPHS):
        return images, images
    if isinstance(images, np.ndarray) and images.dtype.kind in "UO" and images.ndim == 1:
        images = images.tolist()  # paths, or images of different sizes, in an array
    if isinstance(images, np.ndarray | Tensor):
        return images, None
    if not isinstance(images, Iterable) or isinstance(images, bytes | bytearray | Mapping):
        raise DataError(
            "images must be a path, a PIL image, an array of pixels, or a list or generator of these; got "
            f"{type(images).__name__}"
        )
    items = iter(images)
    try:
        first = next(items)
    except StopIteration:
        raise DataError("no images were given: the list or generator is empty") from None
    return (images if isinstance(images, Sequence) else chain([first], items)), first


def median_proportion(images: ImagesLike) -> float | None:
    """Return the median ratio of longer to shorter side of images that would become squares, else None.

    The headers of some files are read. The sizes of the images of a generator are unknown.

    >>> median_proportion([Image.new("RGB", (30, 20)), np.zeros((40, 20, 3)), Image.new("RGB", (20, 50))])
    2.0
    """
    if isinstance(images, str | os.PathLike):
        path = resolve_path(Path(images))
        images = image_files(path) if path.is_dir() else [path]  # files that are not read are reported later
    if isinstance(images, np.ndarray | Tensor) or not isinstance(images, Sequence):
        return None
    found = sorted(max(size) / max(1, min(size)) for size in _sizes(images))
    return found[len(found) // 2] if found else None


def _sizes(images: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the two sides of some of the images; unreadable ones raise an error later, when they are decoded."""
    sizes: list[tuple[int, ...]] = []
    for index in evenly_spaced(len(images), MEASURED_FILES).tolist():
        item = images[index]
        try:
            if isinstance(item, str | os.PathLike):
                sizes.append(image_size(Path(item)))
            else:
                sizes.append(item.size if isinstance(item, Image.Image) else tuple(sorted(np.shape(item))[-2:]))
        except Exception:  # image headers may be damaged in any way
            continue
    return sizes


def pixel_statistics(images: Images, reporter: Reporter | None = None) -> tuple[list[float], list[float]]:
    """Compute mean and standard deviation of each channel, of values in 0..1: exact, from counts of the 256 levels."""
    if pixel_dtype(images) != torch.uint8:
        return _float_statistics(images)
    channels = images.shape[0]
    counts = torch.zeros(channels, 256, dtype=torch.float64)
    with (reporter or Reporter()).progress("brightness of images", len(images)) as advance:
        for start in range(0, len(images), STATISTICS_BATCH):
            pixels = images.batch(torch.arange(start, min(start + STATISTICS_BATCH, len(images)))).cpu()
            counts += torch.stack([pixels[:, channel].flatten().bincount(minlength=256) for channel in range(channels)])
            advance(step=len(pixels))
    shares = counts / counts.sum(1, keepdim=True)
    levels = torch.linspace(0, 1, 256, dtype=torch.float64)
    mean = shares @ levels
    std = (shares * (levels - mean.unsqueeze(1)).square()).sum(1).sqrt()
    # A constant channel is not scaled.
    return mean.tolist(), torch.where(std > 0, std, torch.ones_like(std)).tolist()


def _float_statistics(images: Images) -> tuple[list[float], list[float]]:
    sums = torch.zeros(2, images.shape[0], dtype=torch.float64)
    for rows in torch.split(torch.arange(len(images)), STATISTICS_BATCH):
        pixels = images.batch(rows).double().cpu() / 255
        sums += torch.stack([pixels.sum((0, 2, 3)), pixels.square().sum((0, 2, 3))])
    mean, square = sums / (len(images) * images.shape[1] * images.shape[2])
    std = (square - mean.square()).clamp_min(0).sqrt()
    return mean.tolist(), torch.where(std > 0, std, torch.ones_like(std)).tolist()


# ------------------------------------------------------------------------------------------------- map-style datasets


@dataclass(frozen=True)
class DatasetImages:
    """The images of a map-style dataset, read at every use."""

    items: Any
    key: Any
    shape: Shape

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Tensor) -> Tensor:
        found = [_item_pixels(self.items[index][self.key], index) for index in indices.tolist()]
        return torch.stack(found) if found else torch.empty(0, *self.shape, dtype=torch.uint8)


def labelled_images(
    dataset: Any,
    *,
    image: str = "image",
    label: str = "label",
    in_memory: bool = True,
    reporter: Reporter | None = None,
) -> LabelledImages:
    """Read a map-style dataset of torch, torchvision or Hugging Face: any object with a length and items.

    An item is a pair of image and label, or a dictionary. An image is a PIL image, or an array or tensor (C, H, W),
    (H, W, C) or (H, W): integers in 0..255, or floats in 0..1, which are not rounded. All have one shape.

    Args:
        dataset: the dataset, with its transform.
        image: name of the image in items that are dictionaries.
        label: name of the label in items that are dictionaries; Hugging Face's class names replace its numbers.
        in_memory: whether pixels are stored; otherwise items are read again at every use, with random transforms
            drawn again, and a run with those cannot be resumed.
        reporter: shows progress.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or not len(dataset):
        raise DataError(f"{type(dataset).__name__} must have a length above 0 and items by position (map-style)")
    names = getattr((getattr(dataset, "features", None) or {}).get(label), "names", None)
    labels: list[Hashable] = []
    with (reporter or Reporter()).progress("reading items", len(dataset)) as advance:
        for index in range(len(dataset)):
            try:
                item = dataset[index]
                keys = (image, label) if isinstance(item, Mapping) else (0, 1)
                value, target = item[keys[0]], item[keys[1]]
            except Exception as error:  # code of the user may raise anything
                raise DataError(
                    f"item {index} of {len(dataset)} has no image and label ({type(error).__name__}: {error}): give "
                    f"pairs, or dictionaries with {image!r} and {label!r}"
                ) from error
            pixels = _item_pixels(value, index)
            if not index:
                first = pixels
                stored = torch.empty(len(dataset) if in_memory else 0, *first.shape, dtype=first.dtype)
            if pixels.shape != first.shape or pixels.dtype != first.dtype:
                raise DataError(
                    f"image {index} is {pixels.dtype} of shape {tuple(pixels.shape)}, image 0 {first.dtype} of shape "
                    f"{tuple(first.shape)}: bring all images to one shape and type in the transform of the dataset"
                )
            if in_memory:
                stored[index] = pixels
            labels.append(_item_label(target, index, names))
            advance()
    images = ArrayImages.of_pixels(stored if in_memory else first[None])
    return LabelledImages.from_labels(images if in_memory else DatasetImages(dataset, keys[0], images.shape), labels)


def _item_pixels(value: object, index: int) -> Tensor:
    """One image (C, H, W), uint8 or float32 in 0..255."""
    if isinstance(value, Image.Image):
        return _picture_pixels(value, ImageSpec())
    if not isinstance(value, np.ndarray | Tensor):
        raise DataError(f"image {index} is {type(value).__name__}: it must be a PIL image, an array or a tensor")
    array = plain_array(value, f"image {index}")
    read = ArrayImages.of_floats if array.dtype.kind == "f" else ArrayImages
    try:
        return read(array[None]).pixels[0]
    except DataError as error:
        raise DataError(
            f"image {index}: {error}. If a transform normalises images, leave it out: `Dataset` has mean and deviation"
        ) from None


def _item_label(value: Any, index: int, names: Sequence[str] | None) -> Hashable:
    """One label: text or a number, with the name that Hugging Face has for it."""
    if isinstance(value, np.generic | np.ndarray | Tensor) and np.asarray(value).size == 1:
        value = value.item()
    if not isinstance(value, str | int | float) or value != value:
        raise DataError(f"the label of item {index} is {value!r:.60}: give one class for each image, a number or text")
    if names is None:
        return value
    if not (isinstance(value, int) and 0 <= value < len(names)):
        raise DataError(f"the label of item {index} is {value!r}, and the dataset has {len(names)} class names")
    return names[value]


# ---------------------------------------------------------------------------------------------------------------- files


def file_images(files: list[Path], names: Sequence[str], spec: ImageSpec) -> NamedImages:
    """Read files at the size of ``spec``; each is decoded once, and on demand if they do not fit into memory."""
    channels, height, width = spec.shape or (3, *[spec.size or usual_side([min(size) for size in _sizes(files)])] * 2)
    images = FileImages(
        files,
        (height, width),
        channels=channels,
        skip_bad=spec.skip_bad,
        reporter=spec.reporter,
        resize_mode=spec.resize_mode,
    )
    return NamedImages(images, tuple(names[index] for index in images.kept.tolist()), images.kept, len(files))


def usual_side(shorter_sides: list[int]) -> int:
    """Return the side of squares for images with these shorter sides: their median, at most `PHOTO_SIZE`.

    >>> usual_side([64, 80, 4000]), usual_side([1000]), usual_side([64, 4000]), usual_side([])
    (80, 224, 224, 224)
    """
    if not shorter_sides:
        return PHOTO_SIZE
    return min(PHOTO_SIZE, sorted(shorter_sides)[len(shorter_sides) // 2])


def class_folder_images(path: Path, spec: ImageSpec, groups: GroupsLike = None) -> LabelledImages:
    """Read a folder with one folder of images per class; the folder names are the labels."""
    path = resolve_path(path)
    if not path.is_dir():
        raise DataError(f"{path} is a file: give its label as well, or a folder with one folder per class")
    folders = folders_in(path)
    if not folders:
        raise DataError(
            f"{path} holds no class folders: put the images of each class into a folder named after it, or name the "
            "class of all images (--class NAME; in Python, the second argument)"
        )
    found = {folder: images_in(folder) for folder in folders}
    if example := nested_folder_example(found):
        logger.warning("%s: %s; such a folder is taken as one class", path, example)
    if duplicates := duplicates_across_classes(found):
        one, other = (file.relative_to(path) for file in duplicates[0])
        more = f", as are {len(duplicates) - 1} more pairs" if len(duplicates) > 1 else ""
        logger.warning(
            "%s: %s and %s are the same picture%s, learned as both. If it belongs to one only, forget the other "
            "class with its images as they are now, delete the file there, and teach that class again",
            path,
            one,
            other,
            more,
        )
    listed = [(file, target) for target, files in enumerate(found.values()) for file in files]
    names = [str(file.relative_to(folders[target])) for file, target in listed]
    read = file_images([file for file, _ in listed], names, spec)
    targets = torch.tensor([target for _, target in listed])[read.kept]
    data = LabelledImages(read.images, targets, tuple(one.name for one in folders))
    data = replace(data, groups=read.grouped(groups), grouped_by=relation(groups))
    for label, count in zip(data.classes, data.counts().tolist(), strict=True):
        if not count:
            raise DataError(
                f"none of the images in {path / str(label)} can be decoded: repair them or remove the class"
            )
    return data


def nested_folder_example(members: Mapping[Path, list[Path]]) -> str:
    """Describe the first class folder that holds only several folders of images, which may be the classes; else "".

    One folder within a class folder, as in TinyImageNet's ``n01443537/images``, is unambiguous.
    """
    for folder, files in members.items():
        inner = list(dict.fromkeys(file.relative_to(folder).parts[0] for file in files))
        if len(inner) > 1 and not any(file.parent == folder for file in files):
            return f"{folder.name} holds no images itself, only folders of images: {', '.join(inner[:3])}"
    return ""


def duplicates_across_classes(members: Mapping[Path, Iterable[Path]]) -> list[tuple[Path, Path]]:
    """Find pairs of files of two classes with the same content; only files of one size are read."""
    files = [
        (file.stat().st_size, folder, file) for folder, paths in members.items() for file in paths if file.is_file()
    ]
    classes_of_size = Counter(size for size, _ in {(size, folder) for size, folder, _ in files})
    first: dict[bytes, tuple[Path, Path]] = {}
    pairs = []
    for size, folder, file in files:
        if size and classes_of_size[size] > 1:
            with suppress(OSError), open_regular(file) as opened:  # decoding reports the error
                known, earlier = first.setdefault(hashlib.file_digest(opened, "sha256").digest(), (folder, file))
                if known != folder:
                    pairs.append((earlier, file))
    return pairs


# ----------------------------------------------------------------------------------------------------- arrays, pictures


def _stacked(items: Iterable[Any], spec: ImageSpec, advance: Advance) -> NamedImages:
    """Read PIL images and arrays, one image each, from a list or a generator; each is resized on arrival."""
    bad: dict[int, str] = {}
    found: list[Tensor] = []
    sizes: list[tuple[int, int]] = []
    position = -1
    for position, item in enumerate(items):
        if isinstance(item, Image.Image):
            try:
                pixels = _picture_pixels(item, spec)
            except MemoryError:
                raise
            except Exception as error:  # image decoders raise nearly any exception on damaged files
                bad[position] = str(error) or type(error).__name__
                continue
        else:
            pixels = _array_pixels(item, position)
        sizes.append((pixels.shape[1], pixels.shape[2]))
        found.append(of_shape(pixels, _shape_on_arrival(pixels, spec), spec.resize_mode))
        advance()
    kept = usable(bad, position + 1, "image {}".format, spec.skip_bad)
    channels, height, width = max(map(len, found)), *found[0].shape[1:]
    if spec.shape is None and spec.size is None and (len(set(sizes)) > 1 or max(sizes[0]) > PHOTO_SIZE):
        height = width = usual_side([min(size) for size in sizes])
    stack = torch.stack([of_shape(pixels, (channels, height, width), spec.resize_mode) for pixels in found])
    return NamedImages(ArrayImages(stack), tuple(map(str, kept)), torch.tensor(kept), position + 1)


def _shape_on_arrival(pixels: Tensor, spec: ImageSpec) -> Shape:
    """Return the shape that ``spec`` sets for one image (C, H, W).

    If the images decide, large ones become squares at once, since a generator may yield more than fit into memory.
    """
    channels, height, width = pixels.shape
    if spec.shape is not None or (spec.size is None and max(height, width) <= PHOTO_SIZE):
        return spec.shape or (channels, height, width)
    side = spec.size or min(PHOTO_SIZE, height, width)
    return channels, side, side


def _picture_pixels(picture: Image.Image, spec: ImageSpec) -> Tensor:
    grey = spec.shape[0] == 1 if spec.shape else Image.getmodebase(picture.mode) == "L"
    turned = upright(picture, 1 if grey else 3)
    return torch.from_numpy(fitted(turned, turned.height, turned.width))


def _array_pixels(item: object, position: int) -> Tensor:
    if not isinstance(item, np.ndarray | Tensor):
        advice = "each item must be a path, a PIL image or an array"
        if isinstance(item, tuple | list):
            advice = "give images and labels as two arguments, not in pairs"
        if isinstance(item, bytes | bytearray):
            advice = "open them first, with PIL.Image.open(io.BytesIO(...))"
        raise DataError(f"item {position} is {type(item).__name__}: {advice}")
    array = plain_array(item, f"image {position}")
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and channel_axis(array.shape) is None):
        raise DataError(
            f"item {position} has shape {array.shape}: each item must be one image, (H, W), (H, W, C) or (C, H, W), "
            "with 1, 3 or 4 channels; give a batch as one array, or its images one by one"
        )
    try:
        return image_batch(array[None] if array.ndim == 3 else array)[0]
    except DataError as error:
        raise DataError(f"image {position}: {error}") from None


def plain_array(value: object, what: str = "images") -> Array:
    """Convert numbers to an array that torch can use without a copy; raise a `DataError` for other values."""
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
    # Torch shares memory only with arrays that are writable, in native order and without negative strides.
    return np.require(array, dtype=array.dtype.newbyteorder("="), requirements=["C", "W"])


def image_batch(array: Array, wanted: Shape | None = None, count: int | None = None) -> Tensor:
    """Convert an array to uint8 ``(N, C, H, W)`` with one or three channels.

    Three axes can be grey images (N, H, W) or one image (C, H, W) or (H, W, C). It is one image if its first or last
    axis has 1, 3 or 4 entries, with two exceptions, which are grey images: there are as many labels (``count``) as
    entries of the first axis, and more than one; or the learner takes grey images (``wanted``), and the first axis is
    the one that could be channels or the images have exactly its size.

    >>> def read(*shape, **given):
    ...     return tuple(image_batch(np.zeros(shape, np.uint8), **given).shape)
    >>> read(3, 28, 28), read(3, 28, 28, wanted=(1, 28, 28)), read(3, 28, 28, count=3)
    ((1, 3, 28, 28), (3, 1, 28, 28), (3, 1, 28, 28))
    >>> read(50, 28, 28), read(28, 28, 3, wanted=(1, 28, 28)), read(28, 28), read(5, 3, 9, 9)
    ((50, 1, 28, 28), (1, 3, 28, 28), (1, 1, 28, 28), (5, 3, 9, 9))
    """
    if array.ndim not in (2, 3, 4):
        raise DataError(
            "images must have shape (N, C, H, W), (N, H, W, C), (N, H, W), or, for one image, (C, H, W), (H, W, C) or "
            f"(H, W); got {array.shape}"
        )
    if 0 in array.shape:
        raise DataError("no images were given" if len(array) == 0 else f"images of shape {array.shape} are empty")
    axis = channel_axis(array.shape) if array.ndim == 3 else None
    grey = wanted is not None and wanted[0] == 1 and (axis == 0 or array.shape[1:] == wanted[1:])
    one = array.ndim == 2 or (axis is not None and not grey and (count != len(array) or count == 1))
    pixels = to_uint8_nchw(torch.from_numpy(array[None] if one else array))
    if pixels.shape[1] not in (1, 3, 4):
        raise DataError(f"images must have 1, 3 or 4 channels, first or last; got shape {array.shape}")
    if pixels.shape[1] != 4:
        return pixels
    # Composite onto white, by the rule for transparent image files: a·c + (1 − a)·255.
    share = pixels[:, 3:].float() / 255
    return (pixels[:, :3].float() * share + 255 * (1 - share)).round().to(torch.uint8)


def of_shape(pixels: Tensor, shape: Shape, mode: ResizeMode = "crop") -> Tensor:
    """Convert an image (C, H, W) to other channels and another size, by the rules for image files."""
    channels, height, width = shape
    if pixels.shape == shape:
        return pixels
    picture = as_picture(pixels.numpy()).convert("L" if channels == 1 else "RGB")
    return torch.from_numpy(fitted(picture, height, width, mode))
