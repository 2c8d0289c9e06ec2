"""Features from a dictionary of patches, compared with the plain form: unfold, multiply, threshold, pool."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.backbones.patches import DEVIATION_FLOOR, PatchFeatures, PatchSettings, fit_patches
from adagauss.data.images import ArrayImages

from .measure import Ratio, best_times

IMAGES = 32


def photographs() -> ArrayImages:
    """Smooth random images, so that whitening keeps as many components as of photographs, or more."""
    coarse = torch.rand(200, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return ArrayImages(F.interpolate(coarse, (32, 32), mode="bilinear"))


def plain_form(images: Tensor, features: PatchFeatures) -> Tensor:
    """Every step as it is defined, on all patches and filters at once."""
    weight, bias, directions = (features.get_buffer(f"{name}_6") for name in ("weight", "bias", "directions"))
    filters, offsets = weight @ directions, bias @ directions
    # Patches come as channel, row, column; filters are made for row, column, channel.
    filters = filters.view(6, 6, 3, -1).permute(2, 0, 1, 3).reshape(108, -1)
    patches = F.unfold(255 * images, 6).mT
    centred = patches - patches.mean(2, keepdim=True)
    normal = centred / (patches.var(2, correction=0, keepdim=True) + 10).sqrt()
    products = normal @ filters + offsets
    answers = torch.cat([(products - 0.25).relu(), (-products - 0.25).relu()], 2)
    pooled = F.adaptive_avg_pool2d(answers.mT.reshape(len(images), -1, 27, 27), 2)
    return pooled.view(len(images), 2, -1, 4).mT.flatten(1).sqrt()


@torch.inference_mode()
def run() -> list[Ratio]:
    generator = torch.Generator().manual_seed(1)
    features = fit_patches(photographs(), PatchSettings(patches=20_000, rounds=1), generator)
    images = torch.rand(IMAGES, 3, 32, 32, generator=generator)
    features.mean.zero_()
    features.deviation.fill_(1 - DEVIATION_FLOOR)
    assert (plain_form(images, features) - features(images)).abs().max() < 1e-3

    def ours() -> Tensor:
        found: Tensor = features(images)
        return found

    def theirs() -> Tensor:
        return plain_form(images, features)

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
