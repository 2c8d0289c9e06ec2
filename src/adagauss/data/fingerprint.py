"""A fingerprint of a dataset: runs with different fingerprints have not seen the same images."""

from __future__ import annotations

import hashlib
import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adagauss.data.folders import FileImages
from adagauss.data.images import ArrayImages, Images, Subset, evenly_spaced
from adagauss.errors import DataError
from adagauss.utils.files import open_regular

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

    from adagauss.data.dataset import Dataset

SAMPLED = 1000
ENDS = 4096


def fingerprint(dataset: Dataset) -> str:
    """A digest of the images, labels and class names of both parts, the same on every machine and in every folder.

    Images in memory are hashed completely. For image files, all names and sizes are hashed, and the first and last
    kilobytes of a thousand evenly spaced files; dates are not, since copying changes them. So a few changed pixels in a
    file of the same size may not be detected, while other or missing files, labels, classes and image sizes are.

    >>> from adagauss.data.dataset import load_dataset
    >>> fingerprint(load_dataset("digits")) == fingerprint(load_dataset("digits"))
    True
    """
    return f"1:{_digest(*chain.from_iterable(fingerprints(dataset).items()))}"


def fingerprints(dataset: Dataset) -> dict[str, str]:
    """A digest of each aspect of a dataset, so that whoever compares them can say what changed.

    >>> from adagauss.data.dataset import load_dataset
    >>> list(fingerprints(load_dataset("digits")))[:3]
    ['class names', 'number and size of the training images', 'labels of the training images']
    """
    found = {"class names": _digest(*(f"{type(label).__name__} {label!r}" for label in dataset.classes))}
    for name, part in (("training", dataset.train), ("test", dataset.test)):
        found[f"number and size of the {name} images"] = _digest(repr(part.images.shape), str(len(part)))
        found[f"labels of the {name} images"] = _digest(_bytes(part.targets))
        digest = hashlib.sha256()
        _add_images(digest, part.images)
        found[f"content of the {name} images"] = digest.hexdigest()
    return found


def _digest(*fields: bytes | str) -> str:
    digest = hashlib.sha256()
    _add(digest, *fields)
    return digest.hexdigest()


def _add(digest: Hash, *fields: bytes | str) -> None:
    """Add fields, each with its length, so that their boundaries are unambiguous."""
    for field in fields:
        content = field.encode("utf-8", "surrogateescape") if isinstance(field, str) else field
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)


def _bytes(values: Tensor) -> bytes:
    return values.to(torch.int64).cpu().contiguous().numpy().tobytes()


def _add_images(digest: Hash, images: Images) -> None:
    if isinstance(images, Subset):
        _add(digest, "subset", _bytes(images.indices))
        _add_images(digest, images.images)
    elif isinstance(images, FileImages):
        _add_files(digest, images.paths)
    elif isinstance(images, ArrayImages):
        _add(digest, "pixels")
        digest.update(images.pixels.cpu().contiguous().numpy().data)
    else:
        _add(digest, "some pixels", images.batch(evenly_spaced(len(images), SAMPLED)).cpu().numpy().tobytes())


def _add_files(digest: Hash, paths: list[Path]) -> None:
    base = os.path.commonpath([path.absolute().parent for path in paths])
    sampled = set(evenly_spaced(len(paths), SAMPLED).tolist())
    for index, path in enumerate(paths):
        _add(digest, path.absolute().relative_to(base).as_posix())
        try:
            _add(digest, str(path.stat().st_size))
            if index in sampled:
                _add(digest, _ends(path))
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}): the dataset changed while it was used"
            ) from error


def _ends(path: Path) -> bytes:
    with open_regular(path) as file:
        start = file.read(ENDS)
        file.seek(max(len(start), path.stat().st_size - ENDS))
        return start + file.read(ENDS)
