"""The feature extractor F: normalisation, a trunk, and the linear bottleneck to S features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from adagauss.backbones.registry import Trunk, backbone_info
from adagauss.config import Config

BatchNormPolicy = Literal["train", "frozen", "none"]


class BackboneConfig(Config):
    """Which network turns images into features."""

    name: str = "resnet18"
    features: PositiveInt | None = 64
    """S, the size of the latent space; None leaves the trunk's own features, without a bottleneck."""
    batch_norm: BatchNormPolicy = "train"
    """``train``: statistics and scales move in every task; ``frozen``: they stop after the first task; ``none``: removed."""


class Extractor(nn.Module):
    """F: images in 0..1 to S features.

    The bottleneck is a linear map with bias after pooling (the same as a 1×1 convolution before it); nothing follows
    it, so features are signed.
    """

    def __init__(
        self, trunk: Trunk, features: int | None, mean: Sequence[float], std: Sequence[float], freeze_norm: bool
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.bottleneck: nn.Module = nn.Identity()
        if features is not None:
            linear = nn.Linear(trunk.width, features)
            # The rule of the convolutions, N(0, 2 / (k·k·C_out)) with k = 1: features start at a useful scale.
            nn.init.kaiming_normal_(linear.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(linear.bias)
            self.bottleneck = linear
        self.size = features if features is not None else trunk.width
        self.freeze_norm = freeze_norm
        self.norm_frozen = False
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.bottleneck(self.trunk((images - self.mean) / self.std))
        return features

    def end_first_task(self) -> None:
        """From now on a ``frozen`` batch norm neither updates its statistics nor learns its scales."""
        self.norm_frozen = self.freeze_norm
        if self.norm_frozen:
            for module in _batch_norms(self):
                module.requires_grad_(False)
            self.train(self.training)

    def train(self, mode: bool = True) -> Extractor:
        super().train(mode)
        if self.norm_frozen:
            for module in _batch_norms(self):
                module.eval()
        return self


def build_extractor(
    config: BackboneConfig, shape: tuple[int, int, int], mean: Sequence[float], std: Sequence[float]
) -> Extractor:
    """The extractor for images of ``shape`` (channels, height, width)."""
    channels, height, width = shape
    trunk = backbone_info(config.name).build(channels, min(height, width))
    if config.batch_norm == "none":
        _remove_batch_norm(trunk)
    mean, std = (
        list(values) if len(values) == channels else [sum(values) / len(values)] * channels for values in (mean, std)
    )
    return Extractor(trunk, config.features, mean, std, config.batch_norm == "frozen")


def _batch_norms(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.modules() if isinstance(child, nn.modules.batchnorm._BatchNorm)]


def _remove_batch_norm(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(module, name, nn.Identity())
        else:
            _remove_batch_norm(child)
