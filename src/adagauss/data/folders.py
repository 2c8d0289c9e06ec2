"""Image folders: find image files in sorted order, split them, and build a dataset from lists of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from adagauss.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset, ReadOptions, dataset_error
from adagauss.data.image_files import load_files
from adagauss.data.images import Label, LabelledImages
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


IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def require(path: Path, dataset: str) -> Path:
    """Return the path, or raise a `DataError` that names the missing file and how to get the dataset."""
    if not path.exists():
        raise dataset_error(dataset, f"{path.name} is missing, expected at {path}")
    if not (path.is_file() or path.is_dir()):
        raise dataset_error(dataset, f"{path} is neither a file nor a folder")
    return path


def require_files(paths: Sequence[Path], dataset: str) -> None:
    """Raise if files that a dataset lists are missing: it was only partly extracted."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise dataset_error(
            dataset,
            f"{len(missing)} of {len(paths)} listed images are missing, the first expected at "
            f"{missing[0]}: the dataset seems to be only partly extracted",
        )


def text_of(path: Path, dataset: str) -> str:
    """A text file in UTF-8 that belongs to a dataset."""
    try:
        return require(path, dataset).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise dataset_error(dataset, f"{path} cannot be read ({error})") from error


def table(path: Path, dataset: str) -> list[tuple[str, str]]:
    """A text file of ``key value`` lines, as used by many datasets for labels and splits."""
    lines = text_of(path, dataset).splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line.strip()]
    if not rows or any(len(row) != 2 for row in rows):
        raise dataset_error(dataset, f"{path} is empty or damaged")
    return [(row[0], row[1].strip()) for row in rows]


def class_folders(folder: Path, dataset: str) -> list[Path]:
    """The folders in ``folder``, sorted by name; at least one."""
    found = folders_in(require(folder, dataset))
    if not found:
        raise DataError(f"{dataset}: {folder} holds no class folders")
    return found


def images_below(folder: Path, dataset: str) -> list[Path]:
    """All image files in a class folder and its subfolders, sorted by path; at least one."""
    found = image_files(folder)
    if not found:
        raise DataError(f"{dataset}: class folder {folder} holds no images: fill it or remove it")
    return found


def image_files(folder: Path) -> list[Path]:
    """All image files in a folder and its subfolders, sorted by path; there may be none."""
    return sorted(_images(folder))


def seeded_split(count: int, test_share: float, seed: int) -> tuple[list[int], list[int]]:
    """Training and test positions among ``count`` images, the same on every machine; at least one of each."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held_out = min(max(1, round(count * test_share)), count - 1)
    return sorted(shuffled[held_out:]), sorted(shuffled[:held_out])


def split_by_class(
    dataset: str, folders: Sequence[Path], test_share: float, seeds: Sequence[int]
) -> tuple[FileList, FileList]:
    """Split the images of each class folder into training and test, with one seed per class.

    The split is the same on every machine, and that of a class does not depend on the other classes.
    """
    train, test = FileList(), FileList()
    for target, (folder, seed) in enumerate(zip(folders, seeds, strict=True)):
        images = images_below(folder, dataset)
        if len(images) < 2:
            raise DataError(f"{dataset}: class folder {folder} holds one image, too few to train and test on")
        for files, indices in zip((train, test), seeded_split(len(images), test_share, seed), strict=True):
            files.add([images[index] for index in indices], target)
    return train, test


def holds_class_folders(folder: Path) -> bool:
    """Whether the folder exists and any folder in it holds images."""
    return folder.is_dir() and any(next(_images(path), None) for path in folders_in(folder))


def folders_in(folder: Path) -> list[Path]:
    """The visible folders in a folder, sorted by name; there may be none."""
    own = folder.resolve()
    return sorted(
        path
        for path in folder.iterdir()
        # A link to this folder or to one of its parents is a loop, not a class.
        if _visible(path.name) and path.is_dir() and not own.is_relative_to(path.resolve())
    )


def _images(folder: Path) -> Iterator[Path]:
    # Links are followed, but not to a parent folder, which would bring in other classes.
    return _walk(folder, {_identity(parent) for parent in folder.resolve().parents})


def _walk(folder: Path, visited: set[tuple[int, int]]) -> Iterator[Path]:
    identity = _identity(folder)
    if identity in visited:
        return
    visited.add(identity)
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if _visible(entry.name))
    for name in names:
        path = folder / name
        if path.is_dir():
            yield from _walk(path, visited)
        elif _is_image(path):
            yield path


def _is_image(path: Path) -> bool:
    # Not only files: a pipe or a device with the name of an image is refused when it is read, not skipped.
    return path.suffix.lower() in IMAGE_SUFFIXES and _visible(path.name) and path.exists()


def _visible(name: str) -> bool:
    # Besides hidden files: archives made on a Mac contain a folder of metadata files with image names.
    return not name.startswith(".") and name != "__MACOSX"


def _identity(folder: Path) -> tuple[int, int]:
    state = folder.stat()
    return state.st_dev, state.st_ino
