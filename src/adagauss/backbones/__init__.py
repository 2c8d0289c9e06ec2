"""Networks: images to features of size S."""

from adagauss.backbones.extractor import BackboneConfig, Extractor, build_extractor
from adagauss.backbones.head import IncrementalHead, Network
from adagauss.backbones.registry import Backbone, BackboneSpec, backbones, families, register_backbone, register_family

__all__ = [
    "Backbone",
    "BackboneConfig",
    "BackboneSpec",
    "Extractor",
    "IncrementalHead",
    "Network",
    "backbones",
    "build_extractor",
    "families",
    "register_backbone",
    "register_family",
]  # fmt: skip
