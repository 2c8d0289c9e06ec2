"""A residual network on a fixed dictionary of image patches: it learns fast, and its first layer does not drift.

The first layer computes thresholded products with whitened patches of the first task's images (see
`adagauss.backbones.patches`), averaged over small cells. It is learned once, without labels. Residual blocks on its
maps are trained. Old and new network share the maps, so a method computes them once per batch.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from adagauss.backbones.patches import DEVIATION_FLOOR, DictionarySettings, inverse_deviation, learn_dictionary
from adagauss.backbones.registry import Backbone, BackboneSpec, register_backbone
from adagauss.backbones.resnet import BasicBlock
from adagauss.data.images import Images
from adagauss.errors import ConfigError

AT_ONCE = 8
"""Images whose products are computed together: they stay in a core's cache, which makes it three times as fast."""
STANDARD = 1000
"""Images of the first task that the maps are standardised by."""


class PatchResNetSettings(DictionarySettings):
    """The dictionary, and the residual network on it."""

    filters: PositiveInt = 128
    """Directions of the dictionary; each gives two maps, of positive and of negative products."""
    patch_size: PositiveInt = 6
    """Side of a patch in pixels."""
    pool: PositiveInt = 3
    """Side in pixels of the cells over which products are averaged: 32 pixels give maps of 9 × 9."""
    shift: NonNegativeInt = 1
    """Cells by which the maps of a batch are moved in training, at most and in both directions, in place of crops."""
    widths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (96, 192)
    """Channels of each residual block; each block but the first halves the resolution."""


class PatchResNet(Backbone):
    """Fixed products with a dictionary; a 1 × 1 convolution and residual blocks, which learn; average pooling."""

    has_frozen = True

    def __init__(self, settings: PatchResNetSettings, shape: tuple[int, int, int]) -> None:
        super().__init__(settings.widths[-1])
        channels, height, width = shape
        if min(height, width) < settings.patch_size + settings.pool - 1:
            raise ConfigError(
                f"images of {height}×{width} pixels are too small for patches of {settings.patch_size} pixels in cells "
                f"of {settings.pool}: set backbone.options.patch_size or backbone.options.pool lower, or resize them"
            )
        self.settings = settings
        self.mean, self.std = (0.0,) * channels, (1.0,) * channels  # patches have a contrast of their own
        size, maps = settings.patch_size, 2 * settings.filters
        self.register_buffer("filters", torch.zeros(settings.filters, channels, size, size))
        self.register_buffer("bias", torch.zeros(settings.filters, 1, 1))
        self.register_buffer("centre", torch.zeros(maps, 1, 1))
        self.register_buffer("deviation", torch.ones(maps, 1, 1))
        self.filters: Tensor
        self.bias: Tensor
        self.centre: Tensor
        self.deviation: Tensor
        inputs = (settings.widths[0], *settings.widths[:-1])
        pointwise = nn.Conv2d(maps, inputs[0], 1, bias=False)
        self.layers = nn.Sequential(
            nn.Sequential(pointwise, nn.BatchNorm2d(inputs[0]), nn.ReLU(inplace=True)),
            *(BasicBlock(a, b, 2 if i else 1) for i, (a, b) in enumerate(zip(inputs, settings.widths, strict=True))),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def blocks(self) -> list[nn.Module]:
        """The 1 × 1 convolution and the residual blocks."""
        return list(self.layers)

    @torch.no_grad()
    def prepare(self, images: Images, generator: torch.Generator) -> None:
        """Learn the dictionary, and the mean and deviation of each map."""
        settings, size = self.settings, self.settings.patch_size
        *whitening, directions = learn_dictionary(images, size, settings.filters, settings, generator)
        weight, bias = (values.float() @ directions.T for values in whitening)
        self.filters.copy_(weight.T.view(-1, size, size, images.shape[0]).permute(0, 3, 1, 2))
        self.bias.copy_(bias.view(-1, 1, 1))
        self.centre.zero_()
        self.deviation.fill_(1 - DEVIATION_FLOOR)
        some = torch.randperm(len(images), generator=generator)[:STANDARD]
        maps = self.frozen(images.batch(some).to(self.bias.device).float() / 255)
        deviation, mean = torch.std_mean(maps, (0, 2, 3), correction=0)
        self.centre.copy_(mean.view(-1, 1, 1))
        self.deviation.copy_(deviation.view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.learned(self.frozen(images))

    def learned(self, maps: Tensor) -> Tensor:
        outputs: Tensor = self.layers(maps)
        return outputs.mean((2, 3))

    def frozen(self, images: Tensor) -> Tensor:
        """Standardised maps of thresholded products."""
        # Blocks of images only save time, and an exported program must not fix their number.
        if torch.compiler.is_exporting():
            return self._maps(images)
        # Four times as fast as in bfloat16 on a CPU: so few channels suit its convolutions badly.
        with torch.autocast(images.device.type, enabled=False):
            return torch.cat([self._maps(block) for block in torch.split(images, AT_ONCE)])

    def augmented(self, maps: Tensor, generator: torch.Generator) -> Tensor:
        """Maps moved by at most `PatchResNetSettings.shift` cells; the cells that enter hold the mean, zero."""
        largest = self.settings.shift
        if not largest:
            return maps
        down, right = torch.randint(-largest, largest + 1, (2,), generator=generator).tolist()
        return F.pad(maps, (right, -right, down, -down))

    def _maps(self, images: Tensor) -> Tensor:
        """s = zca(normalise_contrast(p))·d of every patch; then the root of the means of max(0, ±s − α) over cells."""
        size, pool, threshold = self.settings.patch_size, self.settings.pool, self.settings.threshold
        pixels = 255 * images - 127.5  # filters sum to zero: an offset changes only the rounding of the variance
        products = F.conv2d(pixels, self.filters).mul_(inverse_deviation(pixels, size)).add_(self.bias)
        above = F.avg_pool2d(products.clamp(min=threshold), pool)
        below = F.avg_pool2d(products.clamp_(max=-threshold), pool).neg_()
        maps = torch.cat([above, below], 1).sub_(threshold).clamp_(min=0).sqrt_()
        return maps.sub_(self.centre).div_(self.deviation + DEVIATION_FLOOR)


@register_backbone(
    "patch_resnet",
    summary="residual blocks on a fixed dictionary of patches: learns in minutes on a CPU",
    non_negative=True,
    options=PatchResNetSettings,
)
def patch_resnet(spec: BackboneSpec) -> PatchResNet:
    """For small images; larger ones need ``backbone.input_size``, or larger patches and cells."""
    assert isinstance(spec.options, PatchResNetSettings)
    height, width = spec.shape
    side = spec.input_size
    return PatchResNet(spec.options, (spec.channels, side or height, side or width))
