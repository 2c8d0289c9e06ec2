"""Networks: images to features of size S."""

from adagauss.backbones import convnet, resnet  # noqa: F401  (registers the networks)
from adagauss.backbones.extractor import BackboneConfig, Extractor, build_extractor
from adagauss.backbones.head import IncrementalHead, Network
from adagauss.backbones.registry import Trunk, backbones, register_backbone

__all__ = [
    "BackboneConfig", "Extractor", "IncrementalHead", "Network", "Trunk", "backbones", "build_extractor",
    "register_backbone",
]  # fmt: skip
