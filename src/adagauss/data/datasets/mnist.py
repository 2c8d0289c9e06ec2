"""MNIST and Fashion-MNIST from their four IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.images import ArrayImages, Label, LabelledImages
from adagauss.errors import DataError
from adagauss.utils.files import open_regular

_FASHION = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle_boot"
FASHION_CLASSES = tuple(name.replace("_", " ") for name in _FASHION.split())
MAX_BYTES = 2**28
FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def _register(
    name: str, address: str, md5s: Sequence[str], classes: tuple[Label, ...], mean: float, std: float, **facts: Any
) -> None:
    @register_dataset(
        name,
        classes=10,
        images="60,000 training, 10,000 test",
        folder=name,
        downloads={f"{address}/{file}.gz": md5 for file, md5 in zip(FILES, md5s, strict=True)},
        unpack_into=None,
        markers=tuple(f"{file}*" for file in FILES),  # an interrupted download leaves only some of them
        class_order="natural",
        settings={"augmentation.crop_padding": 2},
        **facts,
    )
    def read(options: ReadOptions) -> Dataset:
        """Classes are in the order of the official label numbers."""
        train, test = (_part(options.folder, prefix, classes) for prefix in ("train", "t10k"))
        return Dataset(name, train, test, mean=(mean,), std=(std,))


def _part(folder: Path, prefix: str, classes: tuple[Label, ...]) -> LabelledImages:
    pixels = _read_idx(folder / f"{prefix}-images-idx3-ubyte", axes=3)
    labels = _read_idx(folder / f"{prefix}-labels-idx1-ubyte", axes=1)
    if len(pixels) != len(labels) or len(labels) == 0 or int(labels.max()) >= len(classes):
        raise DataError(f"images and labels in {folder} are inconsistent")
    return LabelledImages(ArrayImages(pixels), torch.from_numpy(labels.astype(np.int64)), classes)


def _read_idx(file: Path, axes: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file: two zero bytes, the type, the number of axes, their lengths, then the values."""
    found = next((path for path in (file, file.with_name(f"{file.name}.gz")) if path.is_file()), None)
    if found is None:
        raise DataError(f"{file.name} (or .gz) is missing, expected at {file}")
    content = _content(found)
    start = 4 + 4 * axes
    # A file may be truncated anywhere, even within the lengths of its axes.
    well_formed = len(content) >= start and content[:4] == bytes((0, 0, 8, axes))  # 8: unsigned bytes
    shape = np.frombuffer(content[4:start], dtype=">u4").tolist() if well_formed else []
    if not well_formed or len(content) != start + math.prod(shape):
        raise DataError(f"{found} is damaged: not a whole IDX file of {axes} axes")
    return np.frombuffer(bytearray(content), dtype=np.uint8, offset=start).reshape(shape)


def _content(file: Path) -> bytes:
    try:
        with open_regular(file) as stream:
            # A compressed file may expand a thousandfold: no more is read than the largest of these files can hold.
            content = (gzip.GzipFile(fileobj=stream) if file.suffix == ".gz" else stream).read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} is damaged ({error})") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{file} is damaged: it holds more than {MAX_BYTES} bytes")
    return content


_register(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    tuple(range(10)),
    mean=0.1307,
    std=0.3081,
    title="MNIST digits, 28x28 grey",
    licence="CC BY-SA 3.0",
    traits=(Trait.GREY, Trait.MIRRORING_HARMS),
)
_register(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    FASHION_CLASSES,
    mean=0.2860,
    std=0.3530,
    title="Fashion-MNIST, 28x28 grey",
    licence="MIT",
    traits=(Trait.GREY,),
)
