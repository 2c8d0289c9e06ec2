"""Frozen features: a patch dictionary concatenated with a pretrained network, where installed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from adagauss.backbones.external import COLOUR
from adagauss.backbones.extractor import resized
from adagauss.backbones.patches import PatchBackbone, PatchSettings, patch_backbone
from adagauss.backbones.registry import Backbone, BackboneSpec, backbone_info, register_backbone
from adagauss.backbones.resnet import IMAGENET_SIDE
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
    enlarge: bool = False
    """Enlarge thumbnails to the size that the network was trained at: more accurate, but up to five times slower."""
    root: bool = False
    """Take the root of the network's features and scale the result to unit length (Hellinger's map), so that strong
    responses do not dominate. Features of a network that may be negative are not changed."""

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

    def __init__(self, dictionary: PatchBackbone, network: Backbone | None, channels: int, root: bool = False) -> None:
        """``channels`` are those that the network takes; a grey image is repeated in three of them."""
        groups = (dictionary.width,) if network is None else (dictionary.width, network.width)
        super().__init__(sum(groups))
        self.groups = groups
        self.dictionary = dictionary
        self.network = network
        self.channels = channels
        self.root = root
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
            features: Tensor = self.network(pixels.expand(-1, self.channels, -1, -1))
            parts[1] = F.normalize(features.clamp_min(0).sqrt()) if self.root else features
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
    side = max(spec.image_size, IMAGENET_SIDE) if options.enlarge and info.carries_weights else spec.image_size
    network = info.build(BackboneSpec(channels, side, spec.shape, pretrained=spec.pretrained))
    return FrozenFeatures(dictionary, network, channels, options.root and info.non_negative)
