"""Features from a dictionary of patches, beside the plain form: unfold, multiply, threshold, pool."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.patches import PatchFeatures, PatchSettings

from .measure import Ratio, best_times

IMAGES = 32


def dictionary() -> PatchFeatures:
    """2,000 filters of 6×6×3 with no meaning: they cost the same as learned ones."""
    features = PatchFeatures(PatchSettings(), (3, 32, 32))
    filters = torch.randn(109, 2000, generator=torch.Generator().manual_seed(0)) / 109**0.5
    filters[:-1] -= filters[:-1].mean(0)
    features.get_buffer("filters_6").copy_(filters)
    return features


def plain_form(images: Tensor, filters: Tensor) -> Tensor:
    """Every step as it is defined, on all patches and filters at once."""
    patches = F.unfold(255 * images, 6).mT
    patches = patches.unflatten(2, (3, 36)).mT.flatten(2)  # row, column, channel
    centred = patches - patches.mean(2, keepdim=True)
    normal = centred / (patches.var(2, correction=0, keepdim=True) + 10).sqrt()
    products = normal @ filters[:-1] + filters[-1]
    answers = torch.cat([(products - 0.25).relu(), (-products - 0.25).relu()], 2)
    maps = answers.mT.unflatten(2, (27, 27))
    pooled = F.adaptive_avg_pool2d(maps, 2).flatten(2)
    return pooled.unflatten(1, (2, -1)).mT.flatten(1).sqrt()


@torch.inference_mode()
def run() -> list[Ratio]:
    features = dictionary()
    filters = features.get_buffer("filters_6")
    images = torch.rand(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert (plain_form(images, filters) - features.pooled(images)).abs().max() < 1e-3

    def ours() -> Tensor:
        return features.pooled(images)

    def theirs() -> Tensor:
        return plain_form(images, filters)

    slow, fast = best_times([theirs, ours], rounds=6)
    return [
        Ratio(
            "patch features, 2,000 filters of 6×6×3, 32 px, stride 1",
            f"{IMAGES / slow:.0f} images/s",
            f"{IMAGES / fast:.0f} images/s",
            slow / fast,
            ">= 2",
        )
    ]
