"""Build a dataset from lists of image files: shared by all readers of image folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from adagauss.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset, ReadOptions
from adagauss.data.files import load_files
from adagauss.data.images import Label, LabelledImages
from adagauss.data.pixel_cache import root_cache, switched_on, user_cache
from adagauss.errors import DataError

PHOTO_SIZE = 224


@dataclass
class FileList:
    """Image files with one class number per file."""

    paths: list[Path] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def add(self, paths: Sequence[Path], target: int) -> None:
        """Append images of one class."""
        self.paths.extend(paths)
        self.targets.extend([target] * len(paths))


def file_dataset(
    name: str,
    classes: Sequence[Label],
    train: FileList,
    test: FileList,
    options: ReadOptions,
    *,
    size: int = PHOTO_SIZE,
    channels: int = 3,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> Dataset:
    """Decode, or prepare to decode, the listed files at ``size``, unless the options set another size.

    Training and test images share the memory limit; training images come first, since they are read most often.
    """
    side = options.size or size
    budget = options.cache_bytes
    parts: list[LabelledImages] = []
    for part, files in (("training", train), ("test", test)):
        _need_every_class(name, part, classes, files.targets, "in its files")
        images, targets = load_files(
            files.paths,
            torch.tensor(files.targets, dtype=torch.long),
            side,
            channels=channels,
            workers=options.workers,
            cache_bytes=budget,
            cache_dir=_writable_cache(options),
            skip_bad_images=options.skip_bad_images,
            max_pixels=options.max_pixels,
            reporter=options.reporter,
        )
        _need_every_class(name, part, classes, targets.tolist(), "after bad ones were skipped")
        if images.in_memory:
            budget -= len(images) * channels * side * side
        parts.append(LabelledImages(images, targets, tuple(classes)))
    return Dataset(name, parts[0], parts[1], mean=mean, std=std)


def _need_every_class(name: str, part: str, classes: Sequence[Label], targets: Sequence[int], when: str) -> None:
    absent = sorted(set(range(len(classes))) - set(targets))
    if absent:
        raise DataError(
            f"{name}: {len(absent)} of {len(classes)} classes have no {part} images {when}, "
            f"the first being {classes[absent[0]]!r}"
        )


def _writable_cache(options: ReadOptions) -> Path | None:
    if not options.keep_decoded or not switched_on():
        return None
    if options.cache_dir is not None:
        return options.cache_dir
    # A data root is not created implicitly: a user with only their own images needs none and gets a cache of their own.
    shared = root_cache(options.root)
    if os.access(shared if shared.exists() else options.root, os.W_OK | os.X_OK):
        return shared
    # A cache of another user is not used: only its owner may read its files.
    return user_cache() if options.path is not None or shared.exists() else None
