"""Weight files, and models of timm (``timm:NAME``).

Weight files are torchvision-style state dicts, loaded strictly and without running code from the file.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adagauss.backbones.registry import Backbone, BackboneSpec
from adagauss.errors import CheckpointError, ConfigError, unknown_name
from adagauss.utils.registry import import_extra

COLOUR = 3
_LOG = logging.getLogger(__name__)
_COUNTER = "num_batches_tracked"


def require_colour(spec: BackboneSpec, backbone: str) -> None:
    """Pretrained networks take three channels; grey images are repeated, other images are refused."""
    if spec.channels != COLOUR:
        raise ConfigError(f"backbone {backbone!r} takes images of 1 or 3 channels; these have {spec.channels}")


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Tensors by name from a ``.safetensors`` file, or from a ``.pth``/``.pt``/``.bin`` file of tensors only."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"backbone.weights: {path} does not exist; give the path of a .safetensors or .pth file")
    loaded = _load(path)
    for wrapper in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{path} is not a state dict: it should hold tensors by parameter name and nothing else")
    return {str(name): value for name, value in loaded.items()}


def _load(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} was refused: it contains more than tensors, or is not a weight file, and loading it could run "
            "hidden code (weights_only=True forbids that). Save the network's state_dict() as .safetensors instead"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be read ({error!r:.200}): download or save it again") from error


def load_weights(network: nn.Module, path: Path | str, backbone: str, heads: Sequence[str] = ("fc.",)) -> None:
    """Load the weights of a file into a network; every parameter must be present with the shape the network has.

    A classifier in the file (names starting with ``heads``) is skipped, and so are the step counters of batch norms. If
    the network takes grey images, a first convolution for colour is summed over its channels, which is the same as
    repeating the grey image three times.
    """
    own = network.state_dict()
    skipped = (*heads, *(name for name in own if name.endswith(_COUNTER)))
    found = {name: value for name, value in own.items() if name.startswith(skipped)}
    for name, value in _without_prefix(read_weights(path), own).items():
        if name in own:
            found[name] = _as_grey(value, own[name])
        elif not name.startswith(tuple(heads)) and not name.endswith(_COUNTER):
            found[name] = value
    try:
        network.load_state_dict(found)
    except RuntimeError as error:
        hint = (
            "A file for large images needs backbone.input_size=224 with small ones; a file for small images needs "
            "backbone.stem=small with large ones"
        )
        raise ConfigError(f"{path} does not fit {backbone}: {str(error)[:500]}. {hint}") from None
    _LOG.info("%s: weights of %s", backbone, path)


def _without_prefix(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as in the network, without one more prefix that the file may have (``vit.``, ``module.``)."""
    wanted = [name for name in own if not name.endswith(_COUNTER)]
    prefixes = {name.removesuffix(wanted[0]) for name in state if name.endswith(f".{wanted[0]}")}
    for prefix in prefixes:
        if all(prefix + name in state for name in wanted):
            return {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _as_grey(value: Tensor, own: Tensor) -> Tensor:
    grey = own.dim() == value.dim() == 4 and own.shape[1] == 1 and value.shape[1] == 3
    return value.sum(dim=1, keepdim=True) if grey and own.shape[0] == value.shape[0] else value


def find_blocks(network: nn.Module, levels: int = 2) -> list[nn.Module]:
    """The blocks of a network in order, found as runs of modules of one class.

    A run is a list or sequence whose members are of one class and have children: transformer layers, residual blocks.
    If the members of a run contain runs themselves (stages of blocks), the inner members are the blocks.
    """
    if levels == 0:
        return []
    members = list(network.children())
    run = isinstance(network, (nn.ModuleList, nn.Sequential)) and len({type(member) for member in members}) == 1
    if run and all(list(member.children()) for member in members):
        return [block for member in members for block in find_blocks(member, levels - 1) or [member]]
    return [block for member in members for block in find_blocks(member, levels)]


class TimmBackbone(Backbone):
    """A timm model without its classifier: pooled features."""

    heads = ("fc.", "classifier.", "head.")

    def __init__(self, network: nn.Module, settings: Any, side: int) -> None:
        with torch.no_grad():
            super().__init__(network.eval()(torch.zeros(1, COLOUR, side, side)).shape[-1])
        self.model = network.train()
        self.input_size = side
        self.mean = tuple(settings.mean)
        self.std = tuple(settings.std)

    def blocks(self) -> list[nn.Module]:
        learning = [child for child in self.model.children() if any(True for _ in child.parameters())]
        return find_blocks(self.model) or learning

    def pretrained_module(self) -> nn.Module:
        return self.model

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.model(images)
        return features


def timm_model(model: str, spec: BackboneSpec) -> Backbone:
    """The model with its pretrained weights, unless weights=random or a weight file is requested."""
    name = f"timm:{model}"
    require_colour(spec, name)
    timm = import_extra("timm", "timm", f"backbone {name!r}")
    if not timm.is_model(model):
        raise unknown_name("model of timm", model.partition(".")[0], timm.list_models())
    try:
        settings = timm.get_pretrained_cfg(model, allow_unregistered=False)
        side = spec.input_size or settings.input_size[-1]
        # Only transformers with a fixed size must be given another size; timm then resamples position embeddings.
        resized = {"img_size": side} if settings.fixed_input_size and side != settings.input_size[-1] else {}
        network = timm.create_model(model, pretrained=spec.pretrained is not False, num_classes=0, **resized)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{name} could not be loaded ({str(error).splitlines()[0]}). Without a connection, download "
            "the weight file elsewhere and set backbone.weights to its path, or set backbone.weights=random"
        ) from error
    return TimmBackbone(network, settings, side)
