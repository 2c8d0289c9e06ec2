"""Backbones of other libraries: timm (``timm:NAME``), transformers (``hf:NAME`` or ``hf:FOLDER``) and weight files.

Weight files are torchvision-style state dicts, loaded strictly and without running code from the file.
"""

from __future__ import annotations

import inspect
import json
import logging
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adagauss.backbones.registry import Backbone, BackboneSpec, register_family
from adagauss.errors import CheckpointError, ConfigError
from adagauss.utils import registry as plugins

COLOUR = 3


def import_extra(module: str, extra: str, backbone: str) -> Any:
    """Import an optional library that a backbone needs."""
    return plugins.import_extra(module, extra, f"backbone {backbone!r}")


def require_colour(spec: BackboneSpec, backbone: str) -> None:
    """Pretrained networks take three channels; grey images are repeated, other images are refused."""
    if spec.channels != COLOUR:
        raise ConfigError(f"backbone {backbone!r} takes images of 1 or 3 channels; these have {spec.channels}")


def measured_width(network: nn.Module, features: Callable[[Tensor], Tensor], side: int) -> int:
    """Number of features of an image of ``side`` pixels, measured by one forward pass."""
    was_training = network.training
    network.eval()
    with torch.no_grad():
        width = features(torch.zeros(1, COLOUR, side, side)).shape[-1]
    network.train(was_training)
    return width


def find_blocks(network: nn.Module, levels: int = 2) -> list[nn.Module]:
    """The blocks of a network in order, found as runs of modules of one class.

    A run is a list or sequence whose members are of one class and have children: transformer layers, residual blocks.
    If the members of a run contain runs themselves (stages of blocks), the inner members are the blocks.
    """
    if levels == 0:
        return []
    members = list(network.children())
    if isinstance(network, (nn.ModuleList, nn.Sequential)) and members and _alike(members):
        return [block for member in members for block in find_blocks(member, levels - 1) or [member]]
    return [block for member in members for block in find_blocks(member, levels)]


def _alike(modules: list[nn.Module]) -> bool:
    return len({type(module) for module in modules}) == 1 and all(list(module.children()) for module in modules)


_LOG = logging.getLogger(__name__)
_COUNTER = "num_batches_tracked"
_SHOWN = 4


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Tensors by name from a ``.safetensors`` file, or from a ``.pth``/``.pt``/``.bin`` file of tensors only."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"backbone.weights: {path} does not exist; give the path of a .safetensors or .pth file")
    loaded = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{path} is not a state dict: it should hold tensors by parameter name and nothing else")
    return {str(name): value for name, value in loaded.items()}


def load_weights(network: nn.Module, path: Path | str, backbone: str, heads: Sequence[str] = ("fc.",)) -> None:
    """Load the weights of a file into a network; every parameter must be present with the shape the network has.

    A classifier in the file (names starting with ``heads``) is skipped, and so are the step counters of batch norms. If
    the network takes grey images, a first convolution for colour is summed over its channels, which is the same as
    repeating the grey image three times.
    """
    own = network.state_dict()
    state = _without_prefix(read_weights(path), own)
    state = {name: _as_grey(value, own[name]) if name in own else value for name, value in state.items()}
    missing = [name for name in own if name not in state and not name.endswith(_COUNTER)]
    unexpected = [
        name for name in state if name not in own and not name.endswith(_COUNTER) and not name.startswith(tuple(heads))
    ]
    reshaped = [name for name in own if name in state and state[name].shape != own[name].shape]
    if missing or unexpected or reshaped:
        shapes = [f"{name} {tuple(state[name].shape)} instead of {tuple(own[name].shape)}" for name in reshaped]
        counts = (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        problems = "; ".join(f"{len(names)} {what} ({_first(names)})" for what, names in counts if names)
        raise ConfigError(f"{path} does not fit {backbone}: parameters {problems}.{_stem_hint(own, state)}")
    network.load_state_dict({name: state.get(name, value) for name, value in own.items()})
    _LOG.info("%s: weights of %s", backbone, path)


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}): download or save it again") from error


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} was refused: it contains more than tensors{_found(error)}, or it is not a weight file, and "
            "loading it could run code hidden in it (weights_only=True forbids that). If you trust where it comes "
            "from, load it yourself and save the network's state_dict() as .safetensors."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        # The text of a KeyError is only the key.
        text = "" if isinstance(error, KeyError) else str(error)
        reason = text.splitlines()[0] if text else "it is not a weight file"
        raise CheckpointError(f"{path} cannot be read ({reason}): download or save it again") from error


def _without_prefix(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as in the network, without one more prefix that the file may have (``vit.``, ``module.``)."""
    wanted = [name for name in own if not name.endswith(_COUNTER)]
    prefixes = {name.removesuffix(wanted[0]) for name in state if name.endswith(f".{wanted[0]}")}
    for prefix in prefixes:
        if all(prefix + name in state for name in wanted):
            return {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _found(error: Exception) -> str:
    """What torch refused, e.g. `posix.system`, if its message names it."""
    named = re.search(r"(?:GLOBAL|global) ([\w.]+)", str(error))
    return f" ({named.group(1)})" if named else ""


def _as_grey(value: Tensor, own: Tensor) -> Tensor:
    grey = own.dim() == value.dim() == 4 and own.shape[1] == 1 and value.shape[1] == 3
    return value.sum(dim=1, keepdim=True) if grey and own.shape[0] == value.shape[0] else value


def _first(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")


def _stem_hint(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """What to set if the file is for images of another size than the network."""
    name = "conv1.weight"
    if name not in own or name not in state or own[name].dim() != 4 or state[name].dim() != 4:
        return ""
    ours, theirs = own[name].shape[-1], state[name].shape[-1]
    if {ours, theirs} != {3, 7}:
        return ""
    if theirs == 7:
        return " The file has the 7x7 stem of large images: set backbone.input_size=224, so that images are enlarged."
    return " The file has the 3x3 stem of small images: set backbone.stem=small to use it."


class WrappedBackbone(Backbone):
    """A network of another library, in ``model``."""

    model: nn.Module

    def blocks(self) -> list[nn.Module]:
        learning = [child for child in self.model.children() if any(True for _ in child.parameters())]
        return find_blocks(self.model) or learning

    def pretrained_module(self) -> nn.Module:
        return self.model


class TimmBackbone(WrappedBackbone):
    """A timm model without its classifier: pooled features."""

    heads = ("fc.", "classifier.", "head.")

    def __init__(self, network: Any, settings: Any, side: int) -> None:
        super().__init__(measured_width(network, network, side))
        self.model = network
        self.input_size = side
        self.mean = tuple(settings.mean)
        self.std = tuple(settings.std)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)
        return features


@register_family("timm", summary="a model of timm by its name (extra: timm)", modules=("timm", "torchvision"))
def timm_model(model: str, spec: BackboneSpec) -> Backbone:
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
    return TimmBackbone(network, settings, side)


DEFAULT_SIDE = 224


class HfBackbone(WrappedBackbone):
    """A vision model of transformers.

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
def hf_model(model: str, spec: BackboneSpec) -> Backbone:
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
        # A model folder may contain Python code: it is never run.
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
    return HfBackbone(network.float(), spec.input_size or _input_side(config, preprocessing), preprocessing)


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
