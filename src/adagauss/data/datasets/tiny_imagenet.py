"""TinyImageNet in its official layout; the official validation images serve as test images."""

from __future__ import annotations

from adagauss.data.dataset import Dataset, ReadOptions, archive, dataset_error, register_dataset
from adagauss.data.folders import FileList, class_folders, file_dataset, images_below, require_files, table, text_of

FOLDER = "tiny-imagenet-200"
SIZE = 64


@register_dataset(
    "tiny",
    title="TinyImageNet, 64x64",
    classes=200,
    images="100,000 training, 10,000 test",
    licence="ImageNet terms of access: research and education, not commercial",
    folder=FOLDER,
    source=archive(
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
    ),
    markers=("wnids.txt", "train", "val"),
    settings={"augmentation.crop_padding": 8},
)
def read_tiny_imagenet(options: ReadOptions) -> Dataset:
    """Classes are the sorted wnids of the training folders, however many there are."""
    folder = options.root / FOLDER
    class_paths = class_folders(folder / "train", "tiny")
    classes = [path.name for path in class_paths]
    listed = text_of(folder / "wnids.txt", "tiny").split()
    absent = sorted(set(listed) - set(classes))
    if absent:
        raise dataset_error(
            "tiny",
            f"{len(absent)} of {len(listed)} classes in wnids.txt have no folder, the first expected "
            f"at {folder / 'train' / absent[0]}: the dataset seems to be only partly extracted",
        )
    train = FileList()
    for target, path in enumerate(class_paths):
        train.add(images_below(path, "tiny"), target)

    number = {wnid: target for target, wnid in enumerate(classes)}
    test = FileList()
    for image, rest in table(folder / "val" / "val_annotations.txt", "tiny"):
        wnid = rest.split(maxsplit=1)[0]  # a bounding box follows
        if wnid in number:
            test.add([folder / "val" / "images" / image], number[wnid])
    require_files(test.paths, "tiny")
    return file_dataset("tiny", classes, train, test, options, size=SIZE)
