"""How much a run trains, from its configuration alone."""

from __future__ import annotations

from adagauss.experiments.config import RunConfig

IMAGES_PER_CLASS = {"cifar100": 500, "tiny": 500, "imagenet-subset-seed1993": 1300, "cub": 30, "aircraft": 67}
CLASSES = {"tiny": 200, "cub": 200}
"""The others have a hundred."""


def passes(config: RunConfig) -> float:
    """Images times epochs that a run trains on; several images instead of one where they are rotated or mixed.

    Adapters and classifiers learn from features and are not counted: finished cells show what they add.
    """
    stream, representation = config.stream, config.method.representation
    images = IMAGES_PER_CLASS.get(stream.dataset, 100)
    classes = stream.classes or CLASSES.get(stream.dataset, 100)
    begun = stream.sizes[0] if stream.sizes else stream.first or classes / stream.tasks
    copies = [representation.label_augmentation.copies(first) for first in (True, False)]
    epochs = [recipe.epochs if recipe else 0 for recipe in (representation.first, representation.later)]
    return images * (begun * epochs[0] * copies[0] + (classes - begun) * epochs[1] * copies[1])
