"""Frozen features of a part of a real dataset, computed once and stored on disk."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from adagauss.core.learn import Learner
from adagauss.core.task import extract_features
from adagauss.data.images import LabelledImages, Subset
from adagauss.methods import make_method

from .real_data import read

SIZES = {"cub": 128, "omniglot": 64}
"""Pixels to which datasets of files are read."""


class Part(NamedTuple):
    """Features and targets of the images of some classes."""

    features: Tensor
    targets: Tensor

    def of(self, classes: Tensor) -> Part:
        """The images of some classes, renumbered in their order."""
        numbers = torch.full((int(self.targets.max()) + 1,), -1)
        numbers[classes] = torch.arange(len(classes))
        chosen = numbers[self.targets] >= 0
        return Part(self.features[chosen], numbers[self.targets[chosen]])


def some(part: LabelledImages, classes: tuple[object, ...], number: int) -> LabelledImages:
    """The first images of each class."""
    chosen = part.of_classes(list(classes))
    places = [(chosen.targets == target).nonzero().flatten()[:number] for target in range(len(classes))]
    rows = torch.cat(places)
    return LabelledImages(Subset(chosen.images, rows), chosen.targets[rows], chosen.classes)


def frozen_features(
    name: str, method: str, classes: int, train: int, test: int, keep: Path, seed: int = 0
) -> tuple[Part, Part]:
    """Features under the network of ``method`` of ``train`` and ``test`` images of each of some classes."""
    file = keep / f"{name}-{method}-{classes}-{train}-{test}-{seed}.pt"
    if not file.exists():
        dataset = read(name, SIZES.get(name))
        order = torch.randperm(len(dataset.classes), generator=torch.Generator().manual_seed(seed))[:classes]
        names = tuple(dataset.classes[index] for index in order.tolist())
        parts = [some(dataset.train, names, train), some(dataset.test, names, test)]
        learner = Learner(make_method(method), dataset.train.images.shape, dataset.mean, dataset.std)
        extractor = learner.network.extractor
        extractor.prepare(parts[0].images, learner.runtime.generator("unlabelled"))
        found = [extract_features(extractor, part.images, learner.runtime, prediction=True).half() for part in parts]
        keep.mkdir(parents=True, exist_ok=True)
        torch.save([(rows, part.targets) for rows, part in zip(found, parts, strict=True)], file)
    stored = torch.load(file, weights_only=True)
    first, second = (Part(rows.float(), targets) for rows, targets in stored)
    return first, second
