"""Labels that users give, as plain values: one per image, or one for all images."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adagauss.data.images import ConcatImages, Label, LabelledImages
from adagauss.errors import DataError
from adagauss.inputs import ImagesLike, Wanted, class_folder_images, read_images

LabelsLike = Iterable[Any] | Tensor | str | int | float | np.generic
"""One label per image, or one label for all."""


def labelled_images(images: ImagesLike, labels: LabelsLike | None, wanted: Wanted) -> LabelledImages:
    """Images with their labels; without labels, a folder of class folders."""
    is_path = isinstance(images, str | os.PathLike)
    if labels is None:
        if not is_path:
            raise DataError("labels are missing: give one per image, or the path of a folder of class folders")
        return class_folder_images(Path(images), wanted)  # type: ignore[arg-type]
    one = _is_label(labels)
    if is_path and not one and Path(images).expanduser().is_dir():  # type: ignore[arg-type]
        raise DataError("a folder of class folders brings its own labels: give none, or one label for all its images")
    listed = None if one else plain_labels(labels)
    shape = tuple(getattr(images, "shape", ()))
    if listed is not None and len(shape) == 2 and shape[0] == len(listed) > 1:
        raise DataError(
            f"numbers of shape {shape} are one grey image, and there are {len(listed)} labels: for a table with a row "
            "of features per image use adagauss.GaussianBayes"
        )
    read = read_images(images, wanted, None if listed is None else len(listed))
    if listed is None:
        listed = plain_labels([labels]) * read.given
    if len(listed) != read.given:
        raise DataError(f"{read.given} images but {len(listed)} labels: give one label per image")
    kept = [listed[position] for position in read.kept.tolist()]
    lost = [label for label in dict.fromkeys(listed) if label not in set(kept)]
    if lost:
        raise DataError(f"none of the images of class {lost[0]!r} can be decoded: repair them or leave the class out")
    return LabelledImages.from_labels(read.images, kept)


def plain_labels(labels: Any) -> list[Label]:
    """Labels as text and numbers of Python's own."""
    if not isinstance(labels, Iterable):
        raise DataError(f"labels must be a sequence, one per image, or one label for all; got {labels!r}")
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    plain = [value.item() if isinstance(value, np.generic | Tensor) else value for value in values]
    for label in plain:
        if not isinstance(label, str | int | float) or (isinstance(label, float) and not math.isfinite(label)):
            raise DataError(f"labels must be text or numbers, one per image; got {label!r}")
    return plain


def check_one_kind(labels: Sequence[Label]) -> None:
    """Raise if some labels are text and some are numbers: they could not be sorted."""
    if len({isinstance(label, str) for label in labels}) > 1:
        raise DataError("some labels are text and some are numbers: use one kind throughout")


def _is_label(labels: object) -> bool:
    return isinstance(labels, str | int | float | np.generic) or (isinstance(labels, np.ndarray) and labels.ndim == 0)


def images_of_classes(classes: Sequence[Label], images: Any, wanted: Wanted) -> LabelledImages:
    """Images of just these classes: a mapping from each to its images, or a folder that has a folder for each.

    For one class it may also be its images alone.
    """
    given = images
    if isinstance(images, str | os.PathLike):
        folder = Path(images).expanduser()
        if all((folder / str(label)).is_dir() for label in classes):
            given = {label: folder / str(label) for label in classes}
    if not isinstance(given, Mapping):
        if len(classes) != 1:
            raise DataError(
                "for several classes, give a folder that has a folder of images for each of them (in Python, "
                "{class: images} will do as well)"
            )
        given = {classes[0]: given}
    if set(given) != set(classes):
        raise DataError(f"images are given for {sorted(map(str, given))}, but the classes are {[*map(str, classes)]}")
    parts = [read_images(given[label], wanted).images for label in classes]
    targets = torch.cat([torch.full((len(part),), target) for target, part in enumerate(parts)])
    return LabelledImages(ConcatImages(parts), targets, tuple(classes))
