"""Any folder of class folders, as ``folder:PATH``."""

from __future__ import annotations

from pathlib import Path

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.folders import class_folders, file_dataset, files_of_classes, holds_class_folders, split_by_class
from adagauss.errors import DataError

TEST_FOLDERS = ("test", "val")
TEST_SHARE = 0.2


@register_dataset(
    "folder",
    title="your own images: folder:PATH, with one folder per class",
    classes=None,
    images="as found; train/ and test/ folders, or else split 80/20 by class",
    licence="yours",
    folder="",
    class_order="natural",
    takes_path=True,
    traits=(Trait.PHOTOGRAPHS,),
)
def read_folder(options: ReadOptions) -> Dataset:
    """Classes are the folder names in sorted order."""
    if options.path is None:
        raise DataError("folder: give the path of the folder, as in folder:path/to/images")
    folder = options.path
    name = f"folder:{folder}"
    if not folder.is_dir():
        raise DataError(f"{name}: the folder does not exist")
    # A class may itself be called "train" or "test": it then contains images instead of class folders. Images next to
    # class folders do not make it a class.
    train = holds_class_folders(folder / "train")
    tests = [folder / other for other in TEST_FOLDERS if holds_class_folders(folder / other)]
    if train and tests:
        return _split_by_folders(name, folder / "train", tests[0], options)
    if train or tests:
        there, lacking = ("train", "test") if train else (tests[0].name, "train")
        raise DataError(
            f"{name}: it has {there}/ but no {lacking}/ with class folders, expected at {folder / lacking}: add it, "
            f"or, if {there!r} is itself a class, put its images directly into {folder / there}"
        )
    class_paths = class_folders(folder, name)
    return file_dataset(
        name, [path.name for path in class_paths], *split_by_class(name, class_paths, TEST_SHARE), options
    )


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
    train, test = (files_of_classes([part / label for label in classes], name) for part in (train_folder, test_folder))
    return file_dataset(name, classes, train, test, options)
