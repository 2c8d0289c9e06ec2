"""What the traits of datasets mean for methods, in one place: datasets know nothing about methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adagauss.core.config import Layer
from adagauss.data.dataset import Trait, dataset_info

SETTINGS: Mapping[Trait, Mapping[str, Any]] = {
    # Augmentation policies are made for colour photographs.
    Trait.GREY: {"augmentation.policy": "none"},
    Trait.MIRRORING_HARMS: {
        "augmentation.flip": False,
        "memory.flips": False,
        "classifier.flips": False,
        "backbone.mirror": False,
    },
    Trait.PHOTOGRAPHS: {"augmentation.resized_crop": True, "augmentation.crop_padding": 0},
    # A crop of a few pixels shows nothing; and few random features are enough, in a fraction of the time.
    Trait.TINY_IMAGES: {
        "augmentation.resized_crop": False,
        "classifier.expansion_size": 512,
    },
    # A task has about 250 images: use many short epochs, and enough batches for the adapter.
    Trait.FEW_IMAGES: {
        "representation.first.epochs": 20,
        "representation.first.batch_size": 32,
        "representation.later.epochs": 20,
        "representation.later.batch_size": 32,
        "drift.recipe.epochs": 100,
        "drift.recipe.batch_size": 32,
        "drift.recipe.learning_rate": 0.1,
    },
}


def trait_layers(traits: Iterable[Trait]) -> list[Layer]:
    """Settings of the traits of a dataset for any method."""
    return [Layer(str(trait), SETTINGS[trait], strict=False) for trait in traits]


def dataset_layers(name: str) -> list[Layer]:
    """Settings of a dataset for any method: those of its traits, then its own settings of images and network.

    >>> [layer.name for layer in dataset_layers("mnist")]
    ['grey images', 'mirroring harms', 'dataset mnist']
    """
    info = dataset_info(name)
    short = name.partition(":")[0]
    return [*trait_layers(info.traits), Layer(f"dataset {short}", info.settings, strict=False)]
