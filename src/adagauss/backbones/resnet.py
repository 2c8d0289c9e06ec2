"""Residual networks of basic blocks: ResNet-18 with torchvision's parameter names, and CIFAR's ResNet-32.

Parameter names (``conv1``, ``bn1``, ``layer1.0.conv1``, ``layer2.0.downsample.0``, …) are those of torchvision, so its
weight files load without renaming.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.backbones.registry import Backbone, BackboneSpec, Builder, Stem, register_backbone
from adagauss.data.dataset import IMAGENET_MEAN, IMAGENET_STD

IMAGENET_SIDE = 224
SMALL_IMAGE = 96
"""Up to this side (in pixels) images get a 3×3 stem without pooling; larger images get the 7×7/2 stem with pooling."""


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)).add_(shortcut), inplace=True)


class ResNet(Backbone):
    """Stages of basic blocks, each but the first halving the resolution, then global average pooling."""

    def __init__(self, channels: int, widths: Sequence[int], blocks: Sequence[int], stem: Stem) -> None:
        super().__init__(widths[-1])
        side, stride = {"small": (3, 1), "halved": (3, 2), "large": (7, 2)}[stem]
        self.conv1 = nn.Conv2d(channels, widths[0], side, stride, side // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "large" else nn.Identity()
        inputs = widths[0]
        self.stages = len(widths)
        for stage, (width, depth) in enumerate(zip(widths, blocks, strict=True)):
            strides = [1 if stage == 0 else 2] + [1] * (depth - 1)
            layers = []
            for stride in strides:
                layers.append(BasicBlock(inputs, width, stride))
                inputs = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def blocks(self) -> list[nn.Module]:
        """The residual blocks from input to output."""
        return [block for stage in range(self.stages) for block in getattr(self, f"layer{stage + 1}")]

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.maxpool(F.relu(self.bn1(self.conv1(images)), inplace=True))
        for block in self.blocks():
            maps = block(maps)
        return maps.mean((2, 3))


def _resnet(widths: Sequence[int], blocks: Sequence[int], small: Stem = "small") -> Builder:
    """A ResNet with the requested stem; ``auto`` is ``small`` or, for larger images, ``large``.

    Weight files with the large stem are those of torchvision, trained on ImageNet with its normalisation.
    """

    def build(spec: BackboneSpec) -> Backbone:
        stem = spec.stem
        if stem == "auto":
            stem = small if spec.image_size <= SMALL_IMAGE else "large"
        network = ResNet(spec.channels, widths, blocks, stem)
        if spec.from_file and stem == "large":
            network.mean, network.std = IMAGENET_MEAN, IMAGENET_STD
            network.input_size = IMAGENET_SIDE if spec.image_size <= SMALL_IMAGE else None
        return network

    return build


for _name, _summary, _build in (
    (
        "resnet18",
        "ResNet-18, torchvision's parameter names; 512 features before the bottleneck",
        _resnet((64, 128, 256, 512), (2, 2, 2, 2)),
    ),
    ("resnet32", "ResNet-32 for CIFAR, 16/32/64 channels", _resnet((16, 32, 64), (5, 5, 5))),
    (
        "resnet_thin",
        "three stages of one block, 16/32/64 channels at half resolution: minutes on a CPU",
        _resnet((16, 32, 64), (1, 1, 1), small="halved"),
    ),
):
    register_backbone(_name, summary=_summary, stems=True, non_negative=True)(_build)


class ConvNet(Backbone):
    """Three 3×3 convolutions with batch norm, one pooling in between."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__(2 * width)
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * width)

    def blocks(self) -> list[nn.Module]:
        """Each convolution with its batch norm."""
        pairs = ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3))
        return [nn.ModuleList(pair) for pair in pairs]

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return F.relu(self.bn3(self.conv3(x))).mean((2, 3))


@register_backbone("convnet", summary="three convolutions, 64 features: for 8x8 digits and tests", non_negative=True)
def convnet(spec: BackboneSpec) -> Backbone:
    """The network of the demo."""
    return ConvNet(spec.channels)
