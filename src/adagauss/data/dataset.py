"""Datasets by name: a registry of readers, one file per reader in `adagauss.data.datasets`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from adagauss.data.images import LabelledImages
from adagauss.errors import ConfigError
from adagauss.utils.progress import Reporter
from adagauss.utils.registry import Registry

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
IMAGE_SIDE = ("augmentation", "backbone")
"""Groups of settings that a dataset may set."""


class Trait(StrEnum):
    """A fact about a dataset's images; `adagauss.methods.traits` defines what it means for methods."""

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

    @property
    def classes(self) -> tuple[Any, ...]:
        return self.train.classes


@dataclass(frozen=True)
class ReadOptions:
    """Options of a reader: where the data are and how image files are read."""

    root: Path = Path("data")
    size: int | None = None
    """Side in pixels that image files are resized to; None: the dataset's default."""
    cache_bytes: int = 4 * 2**30
    """Memory limit for decoded images; beyond it, images are decoded at every use."""
    workers: int = 2
    skip_bad_images: bool = False
    cache_dir: Path | None = None
    """Where decoded images are kept for the next run; None: ``.cache`` below the root, if it exists.

    Without a root, those of ``folder:PATH`` are kept in the user's cache, ``~/.cache/adagauss``.
    """
    keep_decoded: bool = True
    """Whether decoded images are kept on disk; the environment variable ``ADAGAUSS_CACHE=off`` switches it off too."""
    path: Path | None = None
    """The path after the colon in a name such as ``folder:PATH``."""
    reporter: Reporter = field(default_factory=Reporter)
    """Reports the progress of decoding."""
    max_pixels: int | None = None
    """Largest number of pixels of an image file before resizing; None: ``ADAGAUSS_MAX_PIXELS``, or 67 million."""


@dataclass(frozen=True)
class DatasetInfo:
    """A registered dataset: what `adagauss datasets` shows, and the function that reads it."""

    name: str
    title: str
    classes: int | None
    images: str
    licence: str
    folder: str
    """Folder below the data root where it is expected; empty if it needs no files."""
    read: Callable[[ReadOptions], Dataset]
    class_order: str = "icarl"
    """Name of the class order that is used by default."""
    takes_path: bool = False
    """Whether its name contains a path, as in ``folder:PATH``."""
    markers: tuple[str, ...] = ("*",)
    """Patterns below the folder; the dataset is present if each matches a file or folder."""
    traits: tuple[Trait, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted settings of augmentation and network that suit its images."""

    def __post_init__(self) -> None:
        foreign = sorted(key for key in self.settings if key.partition(".")[0] not in IMAGE_SIDE)
        if foreign:
            raise ConfigError(
                f"dataset {self.name!r} sets {foreign[0]}: a dataset may set only {' and '.join(IMAGE_SIDE)}; state a "
                "trait instead, and adagauss.methods.traits defines what it means for methods"
            )

    @property
    def fetchable(self) -> bool:
        """Whether `adagauss datasets fetch` can download it."""
        return self.name in SOURCES

    def present(self, root: Path) -> bool:
        """Whether its files seem to be present; only reading them is a full check."""
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
    """Register a reader, so that `adagauss run --dataset NAME` finds it."""

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
    """The name with the path of ``folder:PATH`` made absolute, so that it is valid from every working directory."""
    prefix, _, location = name.partition(":")
    if not location or prefix not in _DATASETS or not _DATASETS.find(prefix).takes_path:
        return name
    return f"{prefix}:{Path(location).expanduser().absolute()}"


def short_name(name: str) -> str:
    """The name for titles and folders: of ``folder:PATH``, the folder's own name.

    >>> short_name("folder:/home/me/birds"), short_name("digits")
    ('birds', 'digits')
    """
    prefix, _, location = name.partition(":")
    known = location and prefix in _DATASETS and _DATASETS.find(prefix).takes_path
    return Path(location).name or location if known else name


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


@dataclass(frozen=True)
class Download:
    """One file: its address, its checksum as ``algorithm:hex``, and its name."""

    url: str
    checksum: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Source:
    """The files of a dataset, and the folder below the data root for them or their content."""

    folder: str
    downloads: tuple[Download, ...]
    extract: bool = True


def _idx_files(folder: str, address: str, md5s: tuple[str, str, str, str]) -> Source:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = (Download(f"{address}/{name}-ubyte.gz", f"md5:{md5}") for name, md5 in zip(names, md5s, strict=True))
    return Source(folder, tuple(files), extract=False)


def _archive(url: str, md5: str) -> Source:
    return Source("", (Download(url, f"md5:{md5}"),))


_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"

SOURCES: dict[str, Source] = {
    "cifar10": _archive("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    "cifar100": _archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"
    ),
    "tiny": _archive("https://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
    "cub": _archive(
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        "97eceeb196236b17998738112f37df78",
    ),
    "aircraft": _archive(
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
        "d4acdd33327262359767eeaa97a4f732",
    ),
    "omniglot": Source(
        "omniglot",
        (
            Download(f"{_OMNIGLOT}/images_background.zip", "md5:68d2efa1b9178cc56df9314c21c6e718"),
            Download(f"{_OMNIGLOT}/images_evaluation.zip", "md5:6b91aef0f799c5bb55b94e3f2daec811"),
        ),
    ),
    "mnist": _idx_files(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": _idx_files(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}

_IMAGENET = (
    "ImageNet (ILSVRC2012) is available at https://www.image-net.org after registration; sort its images "
    "into imagenet/train/<wnid>/ and imagenet/val/<wnid>/ below the data root."
)

BY_HAND: dict[str, str] = {
    "cars": (
        "The official address of Stanford Cars is gone; copies are on Kaggle. Put cars_train/, cars_test/, "
        "devkit/ and cars_test_annos_withlabels.mat into stanford_cars/ below the data root."
    ),
    "imagenet-subset-first100": _IMAGENET,
    "imagenet-subset-seed1993": _IMAGENET,
}


def how_to_get(name: str) -> str:
    """A sentence that says how to get a dataset; empty if its source is unknown.

    >>> how_to_get("cifar100")
    '`adagauss datasets fetch cifar100` gets it.'
    """
    if name in SOURCES:
        return f"`adagauss datasets fetch {name}` gets it."
    return BY_HAND.get(name, "")
