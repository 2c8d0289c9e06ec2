"""One function for everything that can be given as images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from adagauss.errors import DataError
from adagauss.inputs.arrays import image_batch, layout, plain_array
from adagauss.inputs.files import listed_images, path_images
from adagauss.inputs.named import ImagesLike, NamedImages, Wanted
from adagauss.inputs.pictures import batch_images, gathered

KINDS = "a path, a PIL image, an array of pixels, or a list or generator of these"


def read_images(given: ImagesLike, wanted: Wanted | None = None, count: int | None = None) -> NamedImages:
    """Images of one size, with names; ``count`` is the number of labels, if there are any.

    >>> read = read_images([np.zeros((20, 30, 3), np.uint8), np.zeros((3, 10, 10), np.uint8)])
    >>> read.images.shape, read.names
    ((3, 20, 20), ('0', '1'))
    """
    wanted = wanted or Wanted()
    if isinstance(given, str | os.PathLike):
        return path_images(Path(given), wanted)
    if isinstance(given, Image.Image):
        return gathered([given], wanted)
    if isinstance(given, np.ndarray | Tensor):
        return _array_images(given, wanted, count)
    if not isinstance(given, Iterable) or isinstance(given, bytes | bytearray | Mapping):
        raise DataError(f"images must be {KINDS}; got {type(given).__name__}")
    return _each(iter(given), wanted, count)


def _array_images(given: Any, wanted: Wanted, count: int | None) -> NamedImages:
    if isinstance(given, np.ndarray) and given.dtype.kind in "UO" and given.ndim == 1:
        return _each(iter(given.tolist()), wanted, count)  # paths, or images of different sizes, in an array
    array = plain_array(given)
    return batch_images(image_batch(array, layout(array.shape, wanted.shape, count)), wanted)


def _each(items: Iterator[Any], wanted: Wanted, count: int | None) -> NamedImages:
    """The items of a list or generator, all of the kind of the first one."""
    try:
        first = next(items)
    except StopIteration:
        raise DataError("no images were given: the list or generator is empty") from None
    rest = chain([first], items)
    if isinstance(first, str | os.PathLike):
        return listed_images(rest, wanted)
    if isinstance(first, list) or (isinstance(first, Number) and not isinstance(first, np.ndarray)):
        return _array_images(plain_array(list(rest)), wanted, count)  # nested lists of numbers
    return gathered(rest, wanted)
