"""Any folder of class folders, as ``folder:PATH``."""

from __future__ import annotations

from pathlib import Path

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.folders import class_folders, file_dataset, holds_class_folders, images_in, split_by_class
from adagauss.data.images import normal_label
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
    manual="It is for images of your own: sort them into one folder per class and name it, as in --dataset "
    "folder:path/to/images.",
    traits=(Trait.PHOTOGRAPHS,),
)
def read_folder(options: ReadOptions) -> Dataset:
    """Classes are the folder names in sorted order."""
    folder, name = options.folder, f"folder:{options.folder}"
    if folder == Path():
        raise DataError("give the path of the folder, as in folder:path/to/images")
    if not folder.is_dir():
        raise DataError("the folder does not exist")
    # A class may itself be called "train" or "test": it then contains images instead of class folders. Images next to
    # class folders do not make it a class.
    train = holds_class_folders(folder / "train")
    tests = [folder / other for other in TEST_FOLDERS if holds_class_folders(folder / other)]
    if not train and not tests:
        found = class_folders(folder)
        return file_dataset(name, [path.name for path in found], *split_by_class(found, TEST_SHARE), options)
    if not train or not tests:
        there, lacking = ("train", "test") if train else (tests[0].name, "train")
        raise DataError(
            f"it has {there}/ but no {lacking}/ with class folders, expected at {folder / lacking}: add it, or, if "
            f"{there!r} is itself a class, put its images directly into {folder / there}"
        )
    parts = {path: class_folders(path) for path in (folder / "train", tests[0])}
    classes, tested = ([normal_label(path.name) for path in found] for found in parts.values())
    if uneven := sorted({*map(str, classes)} ^ {*map(str, tested)}):
        lacking_in = tests[0] if uneven[0] in classes else folder / "train"
        raise DataError(
            f"{len(uneven)} classes are in only one of train/ and {tests[0].name}/; first: "
            f"{lacking_in / uneven[0]} is missing"
        )
    number = {label: target for target, label in enumerate(dict.fromkeys(classes))}
    train_files, test_files = (
        [(image, number[normal_label(path.name)]) for path in found for image in images_in(path)]
        for found in parts.values()
    )
    return file_dataset(name, list(number), train_files, test_files, options)
