"""CUB-200-2011: birds in their official layout and split."""

from __future__ import annotations

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.folders import file_dataset, read_table, require_files
from adagauss.errors import DataError


@register_dataset(
    "cub",
    title="Caltech-UCSD Birds-200-2011",
    classes=200,
    images="5,994 training, 5,794 test",
    licence="non-commercial research and education; images belong to their photographers",
    folder="CUB_200_2011",
    downloads={
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz": "97eceeb196236b17998738112f37df78"
    },
    markers=("images.txt", "images"),
    traits=(Trait.PHOTOGRAPHS,),
)
def read_cub(options: ReadOptions) -> Dataset:
    """Classes are named as in ``classes.txt``, e.g. ``001.Black_footed_Albatross``."""
    folder = options.folder
    class_rows = read_table(folder / "classes.txt")
    images = dict(read_table(folder / "images.txt"))
    class_of = dict(read_table(folder / "image_class_labels.txt"))
    in_training = dict(read_table(folder / "train_test_split.txt"))
    number = {identity: target for target, (identity, _) in enumerate(class_rows)}
    if not images.keys() == class_of.keys() == in_training.keys() or not set(class_of.values()) <= set(number):
        raise DataError(f"the lists in {folder} are inconsistent")
    files = {image: (folder / "images" / path, number[class_of[image]]) for image, path in images.items()}
    require_files([*files.values()])
    train, test = ([files[image] for image in files if (in_training[image] == "1") == part] for part in (True, False))
    return file_dataset("cub", [name for _, name in class_rows], train, test, options, margin=True)
