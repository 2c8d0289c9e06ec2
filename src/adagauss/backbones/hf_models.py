"""Vision models of transformers: ``hf:NAME`` from the hub, or ``hf:FOLDER`` from a local folder."""

from __future__ import annotations

import inspect
import json
import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from adagauss.backbones.extras import find_blocks, import_extra, measured_width, parts_that_learn, require_colour
from adagauss.backbones.registry import Trunk, TrunkSpec, register_family
from adagauss.errors import ConfigError

_LOG = logging.getLogger(__name__)
DEFAULT_SIDE = 224


class HfTrunk(Trunk):
    """A transformers model as a trunk.

    Features are the class token of a vision transformer (the mean of its tokens if it has none), or the pooled map of a
    convolutional network.
    """

    heads = ("classifier.", "pooler.")

    def __init__(self, network: Any, side: int, preprocessing: Mapping[str, Any]) -> None:
        nn.Module.__init__(self)
        self.class_token = any(name.endswith("cls_token") for name, _ in network.named_parameters())
        if self.class_token and getattr(network, "pooler", None) is not None:
            network.pooler = None  # a tanh layer that few checkpoints contain: the token itself is the feature
        trained_at = _side(getattr(network.config, "image_size", None))
        resamples = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if resamples and trained_at not in (None, side) else {}
        self.model = network
        self.width = measured_width(network, self.forward, side)
        self.input_size = side
        if "image_mean" in preprocessing and "image_std" in preprocessing:
            self.mean, self.std = tuple(preprocessing["image_mean"]), tuple(preprocessing["image_std"])

    def blocks(self) -> list[nn.Module]:
        return find_blocks(self.model) or parts_that_learn(self.model)

    def named_as_in_files(self) -> nn.Module:
        network: nn.Module = self.model
        return network

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(pixel_values=images, **self.options)
        hidden: Tensor = output.last_hidden_state
        if hidden.dim() == 4:
            pooled: Tensor | None = getattr(output, "pooler_output", None)
            return hidden.mean((2, 3)) if pooled is None else pooled.flatten(1)
        return hidden[:, 0] if self.class_token else hidden.mean(1)


@register_family(
    "hf", summary="a vision model of transformers: hub name or local folder (extra: transformers)",
    modules=("transformers",),
)  # fmt: skip
def hf_model(model: str, spec: TrunkSpec) -> Trunk:
    """A model from the hub or a folder; weights=random, or a missing weight file, starts it from random weights."""
    name = f"hf:{model}"
    require_colour(spec, name)
    transformers = import_extra("transformers", "transformers", name)
    folder = Path(model).expanduser()
    source = str(folder) if folder.is_dir() else model
    pretrained = spec.pretrained is not False
    if pretrained and folder.is_dir() and not _has_weights(folder):
        if spec.pretrained:
            raise ConfigError(f"{folder} has no weight file (model.safetensors): put it there, or set weights=random")
        _LOG.warning("%s has no weight file: the network starts from random weights", folder)
        pretrained = False
    try:
        # A model folder may contain Python code: it is never run, and the user is not asked to allow it.
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        network, lost = _network(transformers.AutoModel, source, config, pretrained)
        preprocessing = _preprocessing(transformers, source)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"the weights of {name} were refused: their pickle contains more than tensors, and loading it could run "
            "code hidden in it. Use a model with a model.safetensors file"
        ) from error
    except (OSError, ValueError, RuntimeError, ImportError, TypeError, LookupError, AttributeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = (
            ". Without a connection, copy config.json, preprocessor_config.json and model.safetensors of the model "
            "into a folder and write backbone.name=hf:FOLDER"
        )
        raise ConfigError(f"{name} could not be loaded ({reason}){'' if folder.is_dir() else advice}") from error
    if lost:
        raise ConfigError(f"the weights of {name} lack {len(lost)} parameters of its network, e.g. {lost[0]}")
    if getattr(network, "main_input_name", "") != "pixel_values":
        raise ConfigError(f"{name} is a {type(network).__name__}, which does not take images: choose a vision model")
    return HfTrunk(network.float(), spec.input_size or _input_side(config, preprocessing), preprocessing)


def _network(auto: Any, source: str, config: Any, pretrained: bool) -> tuple[Any, list[str]]:
    """The network, and the names of parameters that are missing from its weights."""
    if not pretrained:
        return auto.from_config(config, trust_remote_code=False), []
    network, report = auto.from_pretrained(source, config=config, output_loading_info=True, trust_remote_code=False)
    return network, sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def _preprocessing(transformers: Any, source: str) -> dict[str, Any]:
    """Mean, deviation and size the weights were trained with, if the model states them."""
    path = transformers.utils.cached_file(
        source, "preprocessor_config.json", _raise_exceptions_for_missing_entries=False
    )
    return dict(json.loads(Path(path).read_text(encoding="utf-8"))) if path else {}


def _input_side(config: Any, preprocessing: Mapping[str, Any]) -> int:
    sides = (getattr(config, "image_size", None), preprocessing.get("crop_size"), preprocessing.get("size"))
    return next((side for value in sides if (side := _side(value)) is not None), DEFAULT_SIDE)


def _side(value: Any) -> int | None:
    """A side from ``224``, ``[224, 224]``, ``{"height": 224, "width": 224}`` or ``{"shortest_edge": 224}``."""
    if isinstance(value, Mapping):
        value = value.get("height", value.get("shortest_edge"))
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return int(value) if value is not None else None
