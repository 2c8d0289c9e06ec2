"""Models of timm: ``timm:NAME``."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from adagauss.backbones.extras import find_blocks, import_extra, measured_width, parts_that_learn, require_colour
from adagauss.backbones.registry import Trunk, TrunkSpec, register_family
from adagauss.errors import ConfigError


class TimmTrunk(Trunk):
    """A timm model without its classifier: pooled features."""

    heads = ("fc.", "classifier.", "head.")

    def __init__(self, network: Any, settings: Any, side: int) -> None:
        super().__init__(measured_width(network, network, side))
        self.model = network
        self.input_size = side
        self.mean = tuple(settings.mean)
        self.std = tuple(settings.std)

    def blocks(self) -> list[nn.Module]:
        return find_blocks(self.model) or parts_that_learn(self.model)

    def named_as_in_files(self) -> nn.Module:
        network: nn.Module = self.model
        return network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)
        return features


@register_family("timm", summary="a model of timm by its name (extra: timm)", modules=("timm", "torchvision"))
def timm_model(model: str, spec: TrunkSpec) -> Trunk:
    """The model with its pretrained weights, unless weights=random or a weight file is requested."""
    name = f"timm:{model}"
    require_colour(spec, name)
    timm = import_extra("timm", "timm", name)
    architecture = model.partition(".")[0]
    if not timm.is_model(model):
        known = timm.list_models()
        near = get_close_matches(architecture, known, 5) or [other for other in known if architecture in other][:5]
        hint = f"; similar: {', '.join(near)}" if near else "; timm.list_models() lists all"
        raise ConfigError(f"timm has no model {model!r}{hint}")
    try:
        settings = timm.get_pretrained_cfg(model)
    except RuntimeError as error:  # the tag after the dot is unknown
        tagged = ", ".join(timm.list_pretrained(f"{architecture}.*")) or "none"
        raise ConfigError(f"timm has no weights {model!r}; those of this model are: {tagged}") from error
    if settings is None:
        raise ConfigError(f"timm says nothing about the input of {model!r}: choose a model it has weights for")
    side = spec.input_size or settings.input_size[-1]
    # Only transformers with a fixed size must be given another size; timm then resamples their position embeddings.
    resized = {"img_size": side} if settings.fixed_input_size and side != settings.input_size[-1] else {}
    try:
        network = timm.create_model(model, pretrained=spec.pretrained is not False, num_classes=0, **resized)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"the weights of {name} could not be loaded ({str(error).splitlines()[0]}). Without a connection, download "
            "the file elsewhere and set backbone.weights to its path, or set backbone.weights=random"
        ) from error
    return TimmTrunk(network, settings, side)
