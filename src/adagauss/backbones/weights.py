"""Weight files: load torchvision-style state dicts into a trunk, strictly and without running code from the file."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adagauss.errors import CheckpointError, ConfigError

_LOG = logging.getLogger(__name__)
_COUNTER = "num_batches_tracked"
_SHOWN = 4


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Tensors by name from a ``.safetensors`` file, or from a ``.pth``/``.pt``/``.bin`` file of tensors only."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"backbone.weights: there is no file {path}; give the path of a .safetensors or .pth file")
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
