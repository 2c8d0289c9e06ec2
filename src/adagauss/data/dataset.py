"""Datasets by name: a registry of readers, and where their files come from; one file per dataset in `data.datasets`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from adagauss.data.images import CACHE_BYTES, LabelledImages
from adagauss.errors import ConfigError, DataError, unknown_name
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import Registry, import_custom

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
IMAGE_SIDE = ("augmentation", "backbone")
"""Groups of settings that a dataset may set."""


class Trait(StrEnum):
    """A fact about a dataset's images; `adagauss.methods` defines what it means for methods."""

    GREY = "grey images"
    MIRRORING_HARMS = "mirroring harms"
    PHOTOGRAPHS = "photographs"
    TINY_IMAGES = "tiny images"
    FEW_IMAGES = "few images"


@dataclass(frozen=True)
class Dataset:
    """Training and test images with a common numbering of classes, and their normalisation."""

    name: str
    train: LabelledImages
    test: LabelledImages
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    @classmethod
    def of(cls, name: str, train: Any, test: Any, **reading: Any) -> Dataset:
        """Create from two map-style datasets, normalised by the training pixels.

        ``reading`` are arguments of `adagauss.data.inputs.labelled_images`. Test images of other classes are left out.
        """
        from adagauss.data.inputs import labelled_images, pixel_statistics

        parts = [one if isinstance(one, LabelledImages) else labelled_images(one, **reading) for one in (train, test)]
        if missing := [label for label in parts[0].classes if label not in parts[1].classes]:
            raise DataError(f"{name}: class {missing[0]!r} has no test image: each class needs one at least")
        mean, std = pixel_statistics(parts[0].images, reading.get("reporter"))
        return cls(name, parts[0], parts[1].of_classes(parts[0].classes), tuple(mean), tuple(std))

    @property
    def classes(self) -> tuple[Any, ...]:
        return self.train.classes


@dataclass(frozen=True)
class ReadOptions:
    """Options of a reader: where the data are and how image files are read."""

    root: Path = Path("data")
    size: int | None = None
    """Image files are resized to this side in pixels; None: the dataset's default."""
    cache_bytes: int = CACHE_BYTES
    """Memory limit for decoded images; beyond it, images are decoded at every use."""
    skip_bad_images: bool = False
    folder: Path = Path()
    """The folder of the dataset, set by `load_dataset`: below the root, or the path in ``folder:PATH``."""
    reporter: Reporter = field(default_factory=Reporter)
    """Reports the progress of decoding."""


@dataclass(frozen=True)
class DatasetInfo:
    """A registered dataset: what `adagauss list datasets` shows, and the function that reads it."""

    name: str
    read: Callable[[ReadOptions], Dataset]
    title: str = ""
    classes: int | None = None
    images: str = ""
    licence: str = ""
    folder: str = ""
    """Folder below the data root where it is expected; empty if it needs no files."""
    class_order: str = "icarl"
    """Name of the class order that is used by default."""
    takes_path: bool = False
    """Whether its name contains a path, as in ``folder:PATH``."""
    markers: tuple[str, ...] = ("*",)
    """Patterns below the folder; the dataset is present if each matches a file or folder."""
    traits: tuple[Trait, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings of augmentation and network that suit its images."""
    downloads: Mapping[str, str] = field(default_factory=dict)
    """The official files that can be downloaded: MD5 checksums by address."""
    unpack_into: str | None = ""
    """Folder below the data root for the content of these archives; None: they are copied to the dataset's folder."""
    manual: str = ""
    """How to obtain it, if it cannot be downloaded."""

    def __post_init__(self) -> None:
        foreign = sorted(key for key in self.settings if key.partition(".")[0] not in IMAGE_SIDE)
        if foreign:
            raise ConfigError(
                f"dataset {self.name!r} sets {foreign[0]}: a dataset may set only {' and '.join(IMAGE_SIDE)}; state a "
                "trait instead, and adagauss.methods defines what it means for methods"
            )

    def present(self, root: Path) -> bool:
        """Whether its files seem to be present; only reading them is a full check."""
        if not self.folder:
            return True
        folder = root / self.folder
        return folder.is_dir() and (self.takes_path or all(any(folder.glob(marker)) for marker in self.markers))


_DATASETS: Registry[DatasetInfo] = Registry("dataset", "adagauss.data.datasets")


def register_dataset(
    name: str, **facts: Any
) -> Callable[[Callable[[ReadOptions], Dataset]], Callable[[ReadOptions], Dataset]]:
    """Register a reader, so that `adagauss run --dataset NAME` finds it; ``facts`` are fields of `DatasetInfo`."""

    def register(read: Callable[[ReadOptions], Dataset]) -> Callable[[ReadOptions], Dataset]:
        _DATASETS.register(name, DatasetInfo(name=name, read=read, **facts), by=read)
        return read

    return register


def datasets() -> dict[str, DatasetInfo]:
    """Return all registered datasets by name."""
    return _DATASETS.all()


def is_dataset(name: str) -> bool:
    """Whether this is the name of a dataset, with or without a path."""
    return name.partition(":")[0] in _DATASETS


def dataset_info(name: str) -> DatasetInfo:
    """Return a registered dataset; the error for an unknown name suggests the nearest one.

    ``module:name`` or ``file.py:name`` is a dataset of another module, which is imported.

    >>> dataset_info("folder:/my/birds").folder
    '/my/birds'
    """
    prefix, path = _split_path(name)
    if path is None and ":" in name and is_dataset(name):
        raise unknown_name("dataset", name, datasets())
    if path is None:
        import_custom([prefix])
    info = _DATASETS.find(prefix)
    return info if path is None else replace(info, name=f"{prefix}:{path}", folder=str(path))


def stored_dataset_name(name: str) -> str:
    """The name of a dataset as files store it: valid in every working directory.

    The path of ``folder:PATH`` is absolute, and a dataset that is not of this package is named with its module.
    """
    prefix, path = _split_path(name)
    if path is not None:
        return f"{prefix}:{path}"
    if is_dataset(name):
        return _DATASETS.stored_name(name)
    import_custom([name])
    return _DATASETS.stored_name(name.rpartition(":")[2])


def short_name(name: str) -> str:
    """Return the name for titles and folders: the folder of ``folder:PATH``, the dataset of ``module:dataset``.

    >>> short_name("folder:/home/me/birds"), short_name("digits")
    ('birds', 'digits')
    """
    path = _split_path(name)[1]
    return name.rpartition(":")[2] if path is None else path.name or str(path)


def _split_path(name: str) -> tuple[str, Path | None]:
    """Split a name such as ``folder:PATH`` into the dataset and the absolute path; other names have no path."""
    prefix, _, location = name.partition(":")
    if not location or prefix not in _DATASETS or not _DATASETS.find(prefix).takes_path:
        return name, None
    return prefix, Path(location).expanduser().absolute()


def load_dataset(name: str, options: ReadOptions | None = None) -> Dataset:
    """Read a dataset by name; an error about its files says how to get them.

    >>> load_dataset("digits").classes
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    """
    info, options = dataset_info(name), options or ReadOptions()
    try:
        return info.read(replace(options, folder=options.root / info.folder if info.folder else Path()))
    except DataError as error:
        advice = f". {how_to_get(info)}" if not info.takes_path else ""
        raise DataError(f"{name}: {str(error).rstrip('.')}{advice}") from error


def how_to_get(info: DatasetInfo) -> str:
    """Describe how to get a dataset.

    >>> how_to_get(dataset_info("cifar100"))
    '`adagauss list datasets --fetch cifar100` gets it.'
    """
    if info.downloads:
        return f"`adagauss list datasets --fetch {info.name}` gets it."
    return info.manual or f"Put it into {info.folder}/ below the data root."
