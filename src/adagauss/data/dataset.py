"""Datasets by name: a registry of readers, each in a file of its own under `adagauss.data.datasets`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from adagauss.data.images import LabelledImages
from adagauss.data.sources import SOURCES
from adagauss.errors import ConfigError
from adagauss.progress import Reporter
from adagauss.registry import Registry

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
IMAGE_SIDE = ("augmentation", "backbone")
"""What a dataset may set."""


class Trait(StrEnum):
    """A fact about a dataset's images; what it means for a method is said in `adagauss.methods.traits`."""

    GREY = "grey images"
    MIRRORING_HARMS = "mirroring harms"
    PHOTOGRAPHS = "photographs"
    TINY_IMAGES = "tiny images"
    FEW_IMAGES = "few images"


@dataclass(frozen=True)
class Dataset:
    """Training and test images with one numbering of classes, and how networks should see them."""

    name: str
    train: LabelledImages
    test: LabelledImages
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @property
    def classes(self) -> tuple[Any, ...]:
        return self.train.classes


@dataclass(frozen=True)
class ReadOptions:
    """What a reader may be told: where data lie and how file images are held."""

    root: Path = Path("data")
    size: int | None = None
    """Side in pixels that file images are resized to; None: the dataset's usual one."""
    cache_bytes: int = 4 * 2**30
    """Memory budget for decoded file images; beyond it they are decoded again at every use."""
    workers: int = 2
    skip_bad_images: bool = False
    cache_dir: Path | None = None
    """Where decoded file images are kept for the next run; None: ``.cache`` below the root, if it exists.

    Without a root, those of ``folder:PATH`` are kept in the user's cache, ``~/.cache/adagauss``.
    """
    keep_decoded: bool = True
    """Whether decoded file images are kept on disk at all; ``ADAGAUSS_CACHE=off`` in the environment forbids it too."""
    path: Path | None = None
    """What follows the colon in a name such as ``folder:PATH``."""
    reporter: Reporter = field(default_factory=Reporter)
    """Shows how far the decoding of image files is."""
    max_pixels: int | None = None
    """Pixels an image file may have before it is made smaller; None: ``ADAGAUSS_MAX_PIXELS``, or 67 million."""


@dataclass(frozen=True)
class DatasetInfo:
    """A registered dataset: what `adagauss datasets` shows, and the function that reads it."""

    name: str
    title: str
    classes: int | None
    images: str
    licence: str
    folder: str
    """Where it is expected below the data root; empty when nothing needs to be there."""
    read: Callable[[ReadOptions], Dataset]
    class_order: str = "icarl"
    """Name of the class order benchmarks use when none is asked for."""
    takes_path: bool = False
    """Whether it is named with a path, as ``folder:PATH`` is."""
    markers: tuple[str, ...] = ("*",)
    """Patterns below the folder, each of which a file or folder fits where the dataset is there."""
    traits: tuple[Trait, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings of augmentation and network that its images ask for."""

    def __post_init__(self) -> None:
        foreign = sorted(key for key in self.settings if key.partition(".")[0] not in IMAGE_SIDE)
        if foreign:
            raise ConfigError(
                f"dataset {self.name!r} sets {foreign[0]}: a dataset sets {' and '.join(IMAGE_SIDE)} only; state a "
                "trait, and adagauss.methods.traits says what it means for methods"
            )

    @property
    def fetchable(self) -> bool:
        """Whether `adagauss datasets fetch` can download it."""
        return self.name in SOURCES

    def present(self, root: Path) -> bool:
        """Whether its files seem to be there; reading them tells for certain."""
        if not self.folder:
            return True
        folder = root / self.folder
        return folder.is_dir() and (self.takes_path or all(any(folder.glob(marker)) for marker in self.markers))


_DATASETS: Registry[DatasetInfo] = Registry("dataset", "adagauss.data.datasets")


def register_dataset(
    name: str,
    *,
    title: str,
    classes: int | None,
    images: str,
    licence: str,
    folder: str,
    class_order: str = "icarl",
    takes_path: bool = False,
    markers: tuple[str, ...] = ("*",),
    traits: tuple[Trait, ...] = (),
    settings: Mapping[str, Any] | None = None,
) -> Callable[[Callable[[ReadOptions], Dataset]], Callable[[ReadOptions], Dataset]]:
    """Put a reader into the registry: `adagauss run --dataset NAME` then finds it."""

    def register(read: Callable[[ReadOptions], Dataset]) -> Callable[[ReadOptions], Dataset]:
        info = DatasetInfo(
            name,
            title,
            classes,
            images,
            licence,
            folder,
            read,
            class_order,
            takes_path,
            markers,
            traits,
            settings or {},
        )
        _DATASETS.register(name, info, by=read)
        return read

    return register


def datasets() -> dict[str, DatasetInfo]:
    """All registered datasets by name."""
    return _DATASETS.all()


def dataset_info(name: str) -> DatasetInfo:
    """One registered dataset; an unknown name raises with the nearest known one.

    >>> dataset_info("folder:my/birds").takes_path
    True
    """
    prefix, _, location = absolute_name(name).partition(":")
    if location and prefix in _DATASETS and _DATASETS.find(prefix).takes_path:
        return _at_path(_DATASETS.find(prefix), Path(location))
    return _DATASETS.find(name)


def absolute_name(name: str) -> str:
    """A name that means the same from every working directory: the path in ``folder:PATH`` made absolute."""
    prefix, _, location = name.partition(":")
    if not location or prefix not in _DATASETS or not _DATASETS.find(prefix).takes_path:
        return name
    return f"{prefix}:{Path(location).expanduser().absolute()}"


def _at_path(info: DatasetInfo, path: Path) -> DatasetInfo:
    def read(options: ReadOptions) -> Dataset:
        return info.read(replace(options, path=path))

    return replace(info, name=f"{info.name}:{path}", folder=str(path), read=read)


def load_dataset(name: str, options: ReadOptions | None = None) -> Dataset:
    """Read a dataset by name.

    >>> load_dataset("digits").classes
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    """
    return dataset_info(name).read(options or ReadOptions())
