"""Image folders: find image files in sorted order, split them, and build a dataset from lists of files."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from adagauss.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Dataset, ReadOptions, dataset_error
from adagauss.data.image_files import FileImages
from adagauss.data.images import Label, LabelledImages
from adagauss.errors import DataError

PHOTO_SIZE = 224
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})

Files = list[tuple[Path, int]]
"""Image files, each with its class number."""


def file_dataset(
    name: str,
    classes: Sequence[Label],
    train: Files,
    test: Files,
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
    side, budget = options.size or size, options.cache_bytes
    parts: list[LabelledImages] = []
    for part, files in (("training", train), ("test", test)):
        _need_every_class(f"{name}: {{}} of {{}} classes have no {part} images in its files", classes, files)
        images = FileImages(
            [path for path, _ in files],
            side,
            channels=channels,
            cache_bytes=budget,
            skip_bad=options.skip_bad_images,
            reporter=options.reporter,
        )
        files = [files[position] for position in images.kept.tolist()]
        _need_every_class(
            f"{name}: {{}} of {{}} classes have no {part} images after bad ones were skipped", classes, files
        )
        if images.in_memory:
            budget -= len(images) * channels * side * side
        targets = torch.tensor([target for _, target in files], dtype=torch.long)
        parts.append(LabelledImages(images, targets, tuple(classes)))
    return Dataset(name, parts[0], parts[1], mean, std)


def _need_every_class(message: str, classes: Sequence[Label], files: Files) -> None:
    if absent := sorted({*range(len(classes))} - {target for _, target in files}):
        raise DataError(f"{message.format(len(absent), len(classes))}, the first being {classes[absent[0]]!r}")


def require(path: Path, dataset: str) -> Path:
    """Return the path, or raise a `DataError` that names the missing file and how to get the dataset."""
    if not path.exists():
        raise dataset_error(dataset, f"{path.name} is missing, expected at {path}")
    if not (path.is_file() or path.is_dir()):
        raise dataset_error(dataset, f"{path} is neither a file nor a folder")
    return path


def require_files(files: Files, dataset: str) -> Files:
    """Return files that a dataset lists, or raise if some are missing: it was only partly extracted."""
    if missing := [path for path, _ in files if not path.is_file()]:
        raise dataset_error(
            dataset,
            f"{len(missing)} of {len(files)} listed images are missing, the first expected at {missing[0]}: the "
            "dataset seems to be only partly extracted",
        )
    return files


def lines_of(path: Path, dataset: str) -> list[str]:
    """The lines of a text file in UTF-8 that belongs to a dataset, without empty ones."""
    try:
        text = require(path, dataset).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise dataset_error(dataset, f"{path} cannot be read ({error})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def table(path: Path, dataset: str) -> list[tuple[str, str]]:
    """A text file of ``key value`` lines, as used by many datasets for labels and splits."""
    rows = [line.split(maxsplit=1) for line in lines_of(path, dataset)]
    if not rows or any(len(row) != 2 for row in rows):
        raise dataset_error(dataset, f"{path} is empty or damaged")
    return [(row[0], row[1]) for row in rows]


def class_folders(folder: Path, dataset: str) -> list[Path]:
    """The folders in ``folder``, sorted by name; at least one."""
    found = folders_in(require(folder, dataset))
    if not found:
        raise DataError(f"{dataset}: {folder} holds no class folders")
    return found


def images_below(folder: Path, dataset: str) -> list[Path]:
    """All image files in a class folder and its subfolders, sorted by path; at least one."""
    found = image_files(require(folder, dataset))
    if not found:
        raise DataError(f"{dataset}: class folder {folder} holds no images: fill it or remove it")
    return found


def files_of_classes(folders: Sequence[Path], dataset: str) -> Files:
    """All image files of class folders, numbered in the given order."""
    return [(path, target) for target, folder in enumerate(folders) for path in images_below(folder, dataset)]


def seeded_split(count: int, test_share: float, seed: int) -> tuple[list[int], list[int]]:
    """Training and test positions among ``count`` images, the same on every machine; at least one of each."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held_out = min(max(1, round(count * test_share)), count - 1)
    return sorted(shuffled[held_out:]), sorted(shuffled[:held_out])


def split_by_class(
    dataset: str, folders: Sequence[Path], test_share: float, *, same_seed: bool = True
) -> tuple[Files, Files]:
    """Split the images of each class folder into training and test; the split is the same on every machine.

    The seed of a class is its number, or with ``same_seed`` 0, so that its split does not depend on other classes.
    """
    train, test = Files(), Files()
    for target, folder in enumerate(folders):
        images = images_below(folder, dataset)
        if len(images) < 2:
            raise DataError(f"{dataset}: class folder {folder} holds one image, too few to train and test on")
        for files, positions in zip(
            (train, test), seeded_split(len(images), test_share, 0 if same_seed else target), strict=True
        ):
            files += [(images[position], target) for position in positions]
    return train, test


def holds_class_folders(folder: Path) -> bool:
    """Whether the folder exists and any folder in it holds images."""
    return folder.is_dir() and any(image_files(path) for path in folders_in(folder))


def folders_in(folder: Path) -> list[Path]:
    """The visible folders in a folder, sorted by name; there may be none."""
    own = folder.resolve()
    return sorted(
        path
        for path in folder.iterdir()
        # A link to this folder or to one of its parents is a loop, not a class.
        if _visible(path.name) and path.is_dir() and not own.is_relative_to(path.resolve())
    )


def image_files(folder: Path, suffixes: Collection[str] = IMAGE_SUFFIXES) -> list[Path]:
    """All image files in a folder and its subfolders, sorted by path; there may be none.

    Links are followed, but not to a parent folder, which would bring in other classes.
    """

    def fail(error: OSError) -> None:
        raise error

    found, visited = list[Path](), {_identity(parent) for parent in folder.resolve().parents}
    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        identity = _identity(Path(place))
        folders[:] = sorted(filter(_visible, folders)) if identity not in visited else []
        if identity not in visited:
            paths = (Path(place, name) for name in names if _visible(name))
            found += [path for path in paths if path.suffix.lower() in suffixes]
        visited.add(identity)
    # Not only files: a pipe or a device with the name of an image is refused when it is read, not skipped.
    return sorted(path for path in found if path.exists())


def _identity(folder: Path) -> tuple[int, int]:
    state = folder.stat()
    return state.st_dev, state.st_ino


def _visible(name: str) -> bool:
    # Besides hidden files: archives made on a Mac contain a folder of metadata files with image names.
    return not name.startswith(".") and name != "__MACOSX"
