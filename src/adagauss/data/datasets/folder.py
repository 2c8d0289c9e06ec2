"""Any folder of class folders, as ``folder:PATH``."""

from __future__ import annotations

from pathlib import Path

from adagauss.data.dataset import Dataset, ReadOptions, register_dataset
from adagauss.data.file_dataset import FileList, file_dataset
from adagauss.data.listing import class_folders, has_images, images_below, seeded_split
from adagauss.errors import DataError

TEST_SHARE = 0.2
SPLIT_SEED = 0


@register_dataset(
    "folder",
    title="your own images: folder:PATH, with a folder for each class",
    classes=None,
    images="as found; train/ and test/ folders, or else split 80/20 by class",
    licence="yours",
    folder="",
    takes_path=True,
)
def read_folder(options: ReadOptions) -> Dataset:
    """Classes are the folder names in sorted order."""
    if options.path is None:
        raise DataError("folder: say which folder, as in folder:path/to/images")
    folder = options.path
    name = f"folder:{folder}"
    if not folder.is_dir():
        raise DataError(f"{name}: there is no such folder")
    if not _is_split(folder / "train"):
        return _split_by_seed(name, folder, options)
    for other in ("test", "val"):
        if _is_split(folder / other):
            return _split_by_folders(name, folder / "train", folder / other, options)
    raise DataError(f"{name}: it has train/ but no test/ with class folders, expected at {folder / 'test'}")


def _is_split(folder: Path) -> bool:
    # A class may itself be called "train": then images lie in it, not class folders.
    return folder.is_dir() and not has_images(folder) and any(path.is_dir() for path in folder.iterdir())


def _split_by_folders(name: str, train_folder: Path, test_folder: Path, options: ReadOptions) -> Dataset:
    classes = [path.name for path in class_folders(train_folder, name)]
    tested = [path.name for path in class_folders(test_folder, name)]
    uneven = sorted(set(classes) ^ set(tested))
    if uneven:
        lacking = test_folder if uneven[0] in classes else train_folder
        raise DataError(
            f"{name}: {len(uneven)} classes are in only one of {train_folder.name}/ and {test_folder.name}/; "
            f"first: {lacking / uneven[0]} is missing"
        )
    train, test = FileList(), FileList()
    for target, label in enumerate(classes):
        train.add(images_below(train_folder / label, name), target)
        test.add(images_below(test_folder / label, name), target)
    return file_dataset(name, classes, train, test, options)


def _split_by_seed(name: str, folder: Path, options: ReadOptions) -> Dataset:
    class_paths = class_folders(folder, name)
    train, test = FileList(), FileList()
    for target, path in enumerate(class_paths):
        images = images_below(path, name)
        if len(images) < 2:
            raise DataError(f"{name}: class folder {path} holds one image, too few to train and test on")
        # One seed for every class: a class is split alike whichever others stand beside it.
        learnt, held_out = seeded_split(len(images), TEST_SHARE, SPLIT_SEED)
        train.add([images[index] for index in learnt], target)
        test.add([images[index] for index in held_out], target)
    return file_dataset(name, [path.name for path in class_paths], train, test, options)
