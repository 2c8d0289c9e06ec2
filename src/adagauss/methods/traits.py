"""What the facts that datasets state mean for methods, in one place: datasets know nothing of methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from adagauss.data.dataset import Trait, dataset_info
from adagauss.settings import Layer

SETTINGS: Mapping[Trait, Mapping[str, Any]] = {
    # Policies of random changes are made for colour photographs.
    Trait.GREY: {"augmentation.policy": "none"},
    Trait.MIRRORING_HARMS: {"augmentation.flip": False, "memory.flips": False},
    Trait.PHOTOGRAPHS: {"augmentation.resized_crop": True, "augmentation.crop_padding": 0},
    # A box of a few pixels shows nothing; and a few random features do for them, in a fraction of the time.
    Trait.TINY_IMAGES: {"augmentation.resized_crop": False, "classifier.expansion_size": 512},
    # A task has some 250 images: many short epochs, and an adapter that sees enough batches.
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
    """What the traits of a dataset ask of any method."""
    return [Layer(str(trait), SETTINGS[trait], strict=False) for trait in traits]


def dataset_layers(name: str) -> list[Layer]:
    """What a dataset asks of any method: by its traits, then by its own settings of images and network.

    >>> [layer.name for layer in dataset_layers("mnist")]
    ['grey images', 'mirroring harms', 'dataset mnist']
    """
    info = dataset_info(name)
    short = name.partition(":")[0]
    return [*trait_layers(info.traits), Layer(f"dataset {short}", info.settings, strict=False)]
