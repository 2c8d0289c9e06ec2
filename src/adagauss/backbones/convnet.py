"""A small convolutional network for very small images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from adagauss.backbones.registry import Trunk, TrunkSpec, register_backbone


class ConvNet(Trunk):
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
def convnet(spec: TrunkSpec) -> Trunk:
    """The network of the demo."""
    return ConvNet(spec.channels)
