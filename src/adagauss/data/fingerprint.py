"""Fingerprints of datasets: runs with different fingerprints used different images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from adagauss.data.dataset import Dataset
from adagauss.data.folders import FileImages
from adagauss.data.images import ArrayImages, Images, Subset, evenly_spaced
from adagauss.errors import DataError
from adagauss.utils.files import open_regular

SAMPLED = 1000
ENDS = 4096


def fingerprint(dataset: Dataset) -> str:
    """Return a digest of the images, labels and class names, the same on every machine and in every folder.

    Images in memory are hashed completely. For image files, all names and sizes are hashed, and the first and last
    kilobytes of a thousand evenly spaced files; dates are not, since copying changes them. So a few changed pixels in a
    file of the same size may not be detected, while other or missing files, labels, classes and image sizes are.

    >>> from adagauss.data.dataset import load_dataset
    >>> fingerprint(load_dataset("digits")) == fingerprint(load_dataset("digits"))
    True
    """
    return f"1:{_digest(chain.from_iterable(fingerprints(dataset).items()))}"


def fingerprints(dataset: Dataset) -> dict[str, str]:
    """Return a digest of each aspect of a dataset, so that a comparison shows what changed.

    >>> from adagauss.data.dataset import load_dataset
    >>> list(fingerprints(load_dataset("digits")))[:3]
    ['class names', 'number and size of the training images', 'labels of the training images']
    """
    found = {"class names": _digest(f"{type(label).__name__} {label!r}" for label in dataset.classes)}
    for name, part in (("training", dataset.train), ("test", dataset.test)):
        found[f"number and size of the {name} images"] = _digest([repr(part.images.shape), str(len(part))])
        found[f"labels of the {name} images"] = _digest([_bytes(part.targets)])
        found[f"content of the {name} images"] = _digest(_content(part.images))
    return found


def _digest(fields: Iterable[bytes | str | memoryview]) -> str:
    """Hash fields, each with its length, so that their boundaries are unambiguous; a memoryview comes last."""
    digest = hashlib.sha256()
    for field in fields:
        content = field.encode("utf-8", "surrogateescape") if isinstance(field, str) else field
        if not isinstance(content, memoryview):
            digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


def _bytes(values: Tensor) -> bytes:
    return values.to(torch.int64).cpu().contiguous().numpy().tobytes()


def _content(images: Images) -> Iterator[bytes | str | memoryview]:
    if isinstance(images, Subset):
        yield from ("subset", _bytes(images.indices))
        yield from _content(images.images)
    elif isinstance(images, FileImages):
        yield from _files(images.paths)
    elif isinstance(images, ArrayImages):
        yield from ("pixels", images.pixels.cpu().contiguous().numpy().data)
    else:
        yield from ("some pixels", images.batch(evenly_spaced(len(images), SAMPLED)).cpu().numpy().tobytes())


def _files(paths: list[Path]) -> Iterator[bytes | str]:
    base = os.path.commonpath([path.absolute().parent for path in paths])
    sampled = set(evenly_spaced(len(paths), SAMPLED).tolist())
    for index, path in enumerate(paths):
        yield path.absolute().relative_to(base).as_posix()
        try:
            size = path.stat().st_size
            yield str(size)
            if index in sampled:
                with open_regular(path) as file:
                    start = file.read(ENDS)
                    file.seek(max(len(start), size - ENDS))
                    yield start + file.read(ENDS)
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}): the dataset changed while it was used"
            ) from error
