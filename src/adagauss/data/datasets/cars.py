"""Stanford Cars: 196 models in the official layout, labels in Matlab files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.file_dataset import FileList, file_dataset
from adagauss.data.listing import require, require_files
from adagauss.data.sources import how_to_get
from adagauss.errors import DataError

FOLDER = "stanford_cars"


@register_dataset(
    "cars",
    title="Stanford Cars",
    classes=196,
    images="8,144 training, 8,041 test",
    licence="ImageNet terms of access: research and education, not commercial",
    folder=FOLDER,
    markers=("devkit", "cars_train", "cars_test"),
    traits=(Trait.PHOTOGRAPHS,),
)
def read_cars(options: ReadOptions) -> Dataset:
    """Classes are the model names of ``cars_meta.mat``, in its order."""
    folder = options.root / FOLDER
    devkit = folder / "devkit"
    classes = [str(name) for name in _column(devkit / "cars_meta.mat", "class_names")]
    test_labels = folder / "cars_test_annos_withlabels.mat"
    if not test_labels.exists() and (devkit / test_labels.name).exists():  # some copies keep it with the others
        test_labels = devkit / test_labels.name
    train = _listed(devkit / "cars_train_annos.mat", folder / "cars_train", len(classes))
    test = _listed(test_labels, folder / "cars_test", len(classes))
    return file_dataset("cars", classes, train, test, options)


def _listed(annotations: Path, images: Path, classes: int) -> FileList:
    files = FileList()
    for row in _column(annotations, "annotations"):
        target = int(row["class"]) - 1  # Matlab counts from one
        if not 0 <= target < classes:
            raise DataError(f"cars: {annotations} names class {target + 1}, but there are {classes} class names")
        files.add([images / str(row["fname"])], target)
    require_files(files.paths, "cars")
    return files


def _column(file: Path, key: str) -> Any:
    from scipy.io import loadmat  # installed with scikit-learn

    require(file, "cars")
    try:
        content = loadmat(file, squeeze_me=True)
        return np.atleast_1d(content[key])  # a single row was squeezed to a scalar
    except Exception as error:  # whatever a damaged Matlab file leads to
        raise DataError(f"cars: {file} cannot be read ({error}). {how_to_get('cars')}") from error
