"""The classifier beside scikit-learn on the same frozen features: `python -m benchmarks.beside_sklearn [DATASET ...]`.

The classifier is taught five classes at a time and keeps no image; scikit-learn sees all images at once. Both start
from pixels, and processor seconds are those of everything, teaching and answering. Classes are drawn at random; the
test images are each dataset's own.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from adagauss import IncrementalClassifier
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.learner import Learner
from adagauss.methods import make_method

from .real_data import read
from .still_features import SIZES, some


class Size(NamedTuple):
    """How much of a dataset is used: classes, and training and test images of each."""

    classes: int
    train: int
    test: int


DATASETS = {
    "cub": [Size(25, 30, 20), Size(25, 5, 20)],
    "tiny": [Size(30, 60, 20), Size(30, 10, 20)],
    "cifar100": [Size(30, 60, 20), Size(30, 10, 20)],
    "omniglot": [Size(50, 14, 6)],
    "digits": [Size(10, 100, 30)],
}
TASK = 5
"""Classes of a task."""


class Pixels(NamedTuple):
    """Images in memory, one target per image."""

    images: Tensor
    targets: Tensor


def pixels(part: LabelledImages) -> Pixels:
    return Pixels(part.images.batch(torch.arange(len(part))), part.targets)


def taught(method: str | None, train: Pixels, test: Pixels) -> float:
    """Accuracy of the classifier, taught some classes at a time."""
    classifier = IncrementalClassifier(method)
    for start in range(0, int(train.targets.max()) + 1, TASK):
        now = (train.targets >= start) & (train.targets < start + TASK)
        classifier.partial_fit(train.images[now], train.targets[now])
    return classifier.score(test.images, test.targets)


def fitted(estimator: object, train: Pixels, test: Pixels) -> float:
    """Accuracy of an estimator on all features of the pretrained network at once."""
    shown, asked = (ArrayImages(part.images.numpy()) for part in (train, test))
    channels = shown.shape[0]
    learner = Learner(make_method("exact-pretrained"), shown.shape, (0.5,) * channels, (0.25,) * channels)
    first, second = (learner.features(images).numpy() for images in (shown, asked))
    model = make_pipeline(StandardScaler(), estimator).fit(first, train.targets.numpy())
    return float(model.score(second, test.targets.numpy()))


RIVALS: dict[str, Callable[[Pixels, Pixels], float]] = {
    "IncrementalClassifier()": lambda train, test: taught(None, train, test),
    "exact-pretrained": lambda train, test: taught("exact-pretrained", train, test),
    "exact": lambda train, test: taught("exact", train, test),
    "logistic regression": lambda train, test: fitted(LogisticRegression(C=0.01, max_iter=300), train, test),
    "LDA, shrinkage auto": lambda train, test: fitted(
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"), train, test
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    print("| dataset | classes | train images each | " + " | ".join(RIVALS) + " |")
    print("|---|---|---|" + "---|" * len(RIVALS))
    for name in options.datasets:
        for size in DATASETS[name]:
            dataset = read(name, SIZES.get(name))
            generator = torch.Generator().manual_seed(options.seed)
            order = torch.randperm(len(dataset.classes), generator=generator)[: size.classes].tolist()
            names = tuple(dataset.classes[index] for index in order)
            train, test = (
                pixels(some(part, names, number))
                for part, number in ((dataset.train, size.train), (dataset.test, size.test))
            )
            cells = []
            for rival in RIVALS.values():
                started = time.process_time()
                accuracy = rival(train, test)
                cells.append(f"{100 * accuracy:.1f} ({time.process_time() - started:.0f} s)")
            print(f"| {name} | {size.classes} | {size.train} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
