"""Frozen features: a patch dictionary concatenated with a pretrained network, where installed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from adagauss.backbones.external import COLOUR
from adagauss.backbones.extractor import resized
from adagauss.backbones.patches import PatchBackbone, PatchSettings, patch_backbone
from adagauss.backbones.registry import Backbone, BackboneSpec, backbone_info, register_backbone
from adagauss.core.config import Config
from adagauss.data.images import Images
from adagauss.errors import ConfigError


class FrozenOptions(Config):
    """Which features are concatenated."""

    patches: PatchSettings = Field(default_factory=lambda: PatchSettings(filters=200, patches=30_000))
    """1,600 features, about as many as a pretrained network has: the sums of both take 36 MB. So few filters are
    learned as well from 30,000 patches as from 100,000."""
    pretrained: str | None = "efficientnet_lite0"
    """A backbone that comes with weights, which are never trained; None: the patches alone."""

    @field_validator("pretrained")
    @classmethod
    def _is_a_network(cls, name: str | None) -> str | None:
        if name is not None and backbone_info(name).options is not None:
            raise ValueError("name a network, such as efficientnet_lite0, or null for patches alone")
        return name


class FrozenFeatures(Backbone):
    """Maps images in 0..1 to groups of features, concatenated; nothing is trained.

    The classifier scales the groups, because it knows the standard deviations of all images.
    """

    size_setting = "backbone.options.patches.filters"

    def __init__(self, dictionary: PatchBackbone, network: Backbone | None, channels: int) -> None:
        """``channels`` are those that the network takes; a grey image is repeated in three of them."""
        groups = (dictionary.width,) if network is None else (dictionary.width, network.width)
        super().__init__(sum(groups))
        self.groups = groups
        self.dictionary = dictionary
        self.network = network
        self.channels = channels
        own = dictionary.shape[0]
        self.mean, self.std = (0.0,) * own, (1.0,) * own  # each group has its own normalisation
        if network is not None:
            network.requires_grad_(False).eval()

    def blocks(self) -> list[nn.Module]:
        return []

    def train(self, mode: bool = True) -> FrozenFeatures:
        return super().train(False)  # the network stays in evaluation mode

    def prepare(self, images: Images, generator: torch.Generator) -> None:
        self.dictionary.prepare(images, generator)

    def forward(self, images: Tensor, read: Sequence[bool] = (True, True)) -> Tensor:
        parts = [images.new_zeros(images.shape[0], width) for width in self.groups]
        if read[0]:
            parts[0] = self.dictionary.features(resized(images, self.dictionary.input_size))
        if self.network is not None and read[1]:
            mean, std = self.network.mean or (0.0,), self.network.std or (1.0,)
            shift, scale = (torch.tensor(values, device=images.device).view(1, -1, 1, 1) for values in (mean, std))
            pixels = (resized(images, self.network.input_size) - shift) / scale
            parts[1] = self.network(pixels.expand(-1, self.channels, -1, -1))
        return torch.cat(parts, dim=1)


@register_backbone(
    "frozen",
    summary="patches and a pretrained network, concatenated and never trained (extra: pretrained)",
    options=FrozenOptions,
)
def frozen(spec: BackboneSpec) -> Backbone:
    """The features of the method `analytic`."""
    options = spec.options
    assert isinstance(options, FrozenOptions)
    dictionary = patch_backbone(spec, options.patches)
    if options.pretrained is None:
        return FrozenFeatures(dictionary, None, spec.channels)
    info = backbone_info(options.pretrained)
    if spec.channels not in (1, COLOUR):
        raise ConfigError(
            f"{options.pretrained} takes grey or colour images, not {spec.channels} channels; patches alone take any "
            "number: use the method analytic-patches, or set backbone.options.pretrained=null"
        )
    channels = COLOUR if info.carries_weights else spec.channels
    network = info.build(BackboneSpec(channels, spec.image_size, spec.shape, pretrained=spec.pretrained))
    return FrozenFeatures(dictionary, network, channels)
