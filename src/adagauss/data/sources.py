"""Where datasets come from: official addresses and checksums, or how to obtain them by hand."""

from __future__ import annotations

from dataclasses import dataclass


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
