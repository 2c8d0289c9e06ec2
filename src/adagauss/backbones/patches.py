"""Features that stand still: answers of a dictionary of image patches, learned once and without labels."""

from __future__ import annotations

import torch
from torch import Tensor

from adagauss.backbones.extractor import ResizedImages
from adagauss.backbones.registry import Backbone, BackboneSpec, register_backbone
from adagauss.data.images import Images
from adagauss.patches import PatchFeatures, PatchSettings, fit_patches

SIDE = 32
"""Larger images are brought to this side unless another is asked for: patches of photographs say most at this scale."""


class PatchBackbone(Backbone):
    """Images in 0..1 to the pooled answers of a dictionary. It has no parameters: nothing is ever trained."""

    def __init__(self, settings: PatchSettings, shape: tuple[int, int, int], input_size: int | None) -> None:
        features = PatchFeatures(settings, shape)
        super().__init__(features.width)
        self.features = features
        self.shape = shape
        self.input_size = input_size
        channels = shape[0]
        self.mean, self.std = (0.0,) * channels, (1.0,) * channels  # the dictionary has a contrast of its own

    def smaller_setting_hint(self, width: int) -> str:
        return f"{self.where}.options.filters={self.filters_within(width)}"

    def filters_within(self, width: int) -> int:
        """How many filters make at most ``width`` features; one at least."""
        return max(1, width * self.features.settings.filters // self.width)

    def prepare(self, images: Images, generator: torch.Generator) -> None:
        seen = ResizedImages(images, self.input_size)
        self.features = fit_patches(seen, self.features.settings, generator, self.features.mean.device)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.features(images)
        return features


@register_backbone(
    "patches",
    summary="a dictionary of whitened patches, learned without labels and never trained",
    options=PatchSettings,
)
def patches(spec: BackboneSpec) -> Backbone:
    """Single-layer features after Coates, Lee and Ng (2011)."""
    assert isinstance(spec.options, PatchSettings)
    return patch_backbone(spec, spec.options)


def patch_backbone(spec: BackboneSpec, settings: PatchSettings) -> PatchBackbone:
    """The dictionary for images of a shape, which are brought to `SIDE` pixels where they are larger."""
    height, width = spec.shape
    side = spec.input_size or (SIDE if min(height, width) > SIDE else None)
    return PatchBackbone(settings, (spec.channels, side or height, side or width), side)
