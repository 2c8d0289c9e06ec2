"""Augmentation of whole batches: one call per operation, every image with its own random parameters."""

from adagauss.data.augment.geometry import horizontal_flip
from adagauss.data.augment.pipeline import Augmentation, Changes, to_float

__all__ = ["Augmentation", "Changes", "horizontal_flip", "to_float"]
