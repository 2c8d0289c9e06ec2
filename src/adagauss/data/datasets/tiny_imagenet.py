"""TinyImageNet in its official layout; the official validation images serve as test images."""

from __future__ import annotations

from adagauss.data.dataset import Dataset, ReadOptions, register_dataset
from adagauss.data.folders import class_folders, file_dataset, files_of_classes, read_lines, read_table, require_files
from adagauss.errors import DataError


@register_dataset(
    "tiny",
    title="TinyImageNet, 64x64",
    classes=200,
    images="100,000 training, 10,000 test",
    licence="ImageNet terms of access: research and education, not commercial",
    folder="tiny-imagenet-200",
    downloads={"https://cs231n.stanford.edu/tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    markers=("wnids.txt", "train", "val"),
    settings={"augmentation.crop_padding": 8},
)
def read_tiny_imagenet(options: ReadOptions) -> Dataset:
    """Classes are the sorted wnids of the training folders, however many there are."""
    folder = options.folder
    class_paths = class_folders(folder / "train")
    classes = [path.name for path in class_paths]
    listed = read_lines(folder / "wnids.txt")
    absent = sorted(set(listed) - set(classes))
    if absent:
        raise DataError(
            f"{len(absent)} of {len(listed)} classes in wnids.txt have no folder, the first expected at "
            f"{folder / 'train' / absent[0]}: the dataset seems to be only partly extracted"
        )
    number = {wnid: target for target, wnid in enumerate(classes)}
    annotations = read_table(folder / "val" / "val_annotations.txt")
    wnids = [(image, rest.split()[0]) for image, rest in annotations]  # a bounding box follows
    test = [(folder / "val" / "images" / image, number[wnid]) for image, wnid in wnids if wnid in number]
    train = files_of_classes(class_paths)
    return file_dataset("tiny", classes, train, require_files(test), options, size=64)
