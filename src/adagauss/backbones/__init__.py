"""Networks: images to features of size S."""

from adagauss.backbones.extractor import BackboneConfig, Extractor, build_extractor
from adagauss.backbones.head import IncrementalHead, Network
from adagauss.backbones.registry import Backbone, BackboneSpec, backbones, register_backbone

__all__ = [
    "Backbone",
    "BackboneConfig",
    "BackboneSpec",
    "Extractor",
    "IncrementalHead",
    "Network",
    "backbones",
    "build_extractor",
    "register_backbone",
]  # fmt: skip
