"""Scikit-learn's digits: 1,797 real 8×8 images of handwritten digits, part of scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from adagauss.data.dataset import Dataset, ReadOptions, Trait, register_dataset
from adagauss.data.images import ArrayImages, LabelledImages

TEST_SHARE = 0.3
SPLIT_SEED = 0


@register_dataset(
    "digits",
    title="scikit-learn digits, 8x8",
    classes=10,
    images="1,797, split 70/30 by class",
    licence="CC BY 4.0 (UCI optical recognition of handwritten digits)",
    folder="",
    manual="It needs no download: use it as it is, with --dataset digits.",
    class_order="natural",
    traits=(Trait.GREY, Trait.MIRRORING_HARMS, Trait.TINY_IMAGES, Trait.FEW_IMAGES),
    settings={"backbone.name": "convnet", "backbone.features": 16, "augmentation.crop_padding": 1},
)
def read_digits(options: ReadOptions) -> Dataset:
    """Split per class with a fixed seed, so that every run sees the same training and test images."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))
    targets = torch.from_numpy(bunch.target.astype(np.int64))
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    parts: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for digit in range(10):
        members = torch.nonzero(targets == digit).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        held_out = round(len(members) * TEST_SHARE)
        parts[0].append(members[held_out:])
        parts[1].append(members[:held_out])
    chosen = [torch.cat(part) for part in parts]
    train, test = (LabelledImages(ArrayImages(pixels[rows]), targets[rows], tuple(range(10))) for rows in chosen)
    return Dataset("digits", train, test, mean=(0.3053,), std=(0.3760,))
