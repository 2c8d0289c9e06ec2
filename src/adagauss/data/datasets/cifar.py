"""CIFAR-10 and CIFAR-100 from the official Python archives, read without unpickling."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adagauss.data.dataset import Dataset, ReadOptions, register_dataset
from adagauss.data.folders import require
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.data.safe_pickle import read_plain_pickle
from adagauss.errors import DataError
from adagauss.utils.files import open_regular

logger = logging.getLogger(__name__)

MEAN = (0.5071, 0.4867, 0.4408)
STD = (0.2675, 0.2565, 0.2761)

_MD5 = {
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "cifar-100-python/meta": "7973b15100ade9c7d40fb424638fde48",
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
MAX_CLASSES = 1000


def _register(
    name: str, folder: str, archive: dict[str, str], train: list[str], test: str, meta: str, prefix: str = ""
) -> None:
    @register_dataset(
        name,
        title=f"CIFAR-{name.removeprefix('cifar')}, 32x32",
        classes=int(name.removeprefix("cifar")),
        images="50,000 training, 10,000 test",
        licence="none stated; cite Krizhevsky (2009)",
        folder=folder,
        downloads=archive,
        markers=(*train, test, meta),
    )
    def read(options: ReadOptions) -> Dataset:
        """Classes are the label names, of CIFAR-100 the fine ones, in the order of the official label numbers."""
        classes = _class_names(options.folder / meta, f"{prefix}label_names")
        for file in (*train, test):  # checked before anything large is read
            require(options.folder / file)

        def part(files: list[str]) -> LabelledImages:
            batches = (_batch(options.folder / file, f"{prefix}labels") for file in files)
            pixels, labels = zip(*batches, strict=True)
            targets = torch.from_numpy(np.concatenate(labels))
            if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(classes):
                raise _damaged(options.folder / meta, f"labels do not fit the {len(classes)} class names")
            return LabelledImages(ArrayImages(np.concatenate(pixels)), targets, classes)

        return Dataset(name, part(train), part([test]), mean=MEAN, std=STD)


_SOURCE = "https://www.cs.toronto.edu/~kriz"
_register(
    "cifar100",
    "cifar-100-python",
    {f"{_SOURCE}/cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
    ["train"],
    "test",
    "meta",
    "fine_",
)
_register(
    "cifar10",
    "cifar-10-batches-py",
    {f"{_SOURCE}/cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    [f"data_batch_{number}" for number in range(1, 6)],
    "test_batch",
    "batches.meta",
)


def _batch(file: Path, labels_key: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    content = _load(file)
    rows, labels = content.get("data"), content.get(labels_key)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iu":
        labels = labels.tolist()
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < MAX_CLASSES for label in labels):
        raise _damaged(file, f"it does not hold a list of {labels_key!r}")
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape != (len(labels), 3 * 32 * 32):
        raise _damaged(file, f"it does not hold images of 3x32x32 with one of {labels_key!r} each")
    return rows.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def _class_names(file: Path, names_key: str) -> tuple[str, ...]:
    names = _load(file).get(names_key)
    if not isinstance(names, list) or not all(isinstance(label, str | bytes) for label in names):
        raise _damaged(file, f"it does not hold a list of {names_key!r}")
    return tuple(_text(label) for label in names)


def _load(file: Path) -> dict[str, Any]:
    with open_regular(require(file)) as stream:
        if hashlib.file_digest(stream, "md5").hexdigest() != _MD5[f"{file.parent.name}/{file.name}"]:
            logger.warning("%s is not the official file (its MD5 differs)", file)
    content = read_plain_pickle(file)
    if not isinstance(content, dict):
        raise _damaged(file, "it does not hold a dictionary")
    return {_text(key) if isinstance(key, bytes) else key: value for key, value in content.items()}


def _text(label: str | bytes) -> str:
    """Decode bytes; copies written by Python 3 may hold them where the official files hold text."""
    return label.decode("latin1") if isinstance(label, bytes) else label


def _damaged(file: Path, why: str) -> DataError:
    return DataError(f"{file} is damaged: {why}")
