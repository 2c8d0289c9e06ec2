"""What adapters of other libraries' networks share: lazy imports, finding blocks, measuring features."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from adagauss.backbones.registry import TrunkSpec
from adagauss.errors import ConfigError

COLOUR = 3


def import_extra(module: str, extra: str, backbone: str) -> Any:
    """An optional library, imported now; where it cannot be, the error names the extra that brings it."""
    try:
        return import_module(module)
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == module
        if absent:
            problem = f"needs {module}, which is not installed"
        else:
            problem = f"needs {module}, which is installed but does not import ({error})"
        raise ConfigError(f"backbone {backbone!r} {problem}: pip install 'adagauss[{extra}]'") from error


def require_colour(spec: TrunkSpec, backbone: str) -> None:
    """Pretrained networks see three channels; grey images reach them repeated, anything else cannot."""
    if spec.channels != COLOUR:
        raise ConfigError(f"backbone {backbone!r} takes images of 1 or 3 channels; these have {spec.channels}")


def measured_width(network: nn.Module, features: Callable[[Tensor], Tensor], side: int) -> int:
    """Features an image of ``side`` pixels gets, by trying it."""
    was_training = network.training
    network.eval()
    with torch.no_grad():
        width = features(torch.zeros(1, COLOUR, side, side)).shape[-1]
    network.train(was_training)
    return width


def find_blocks(network: nn.Module, levels: int = 2) -> list[nn.Module]:
    """The blocks of a network in order, found as runs of like modules.

    A run is a list or sequence whose members are of one class and have parts of their own: transformer layers,
    residual blocks. Where members of a run hold runs themselves (stages of blocks), the inner ones are the blocks.
    """
    found: list[nn.Module] = []
    for child in network.children():
        members = list(child.children()) if isinstance(child, (nn.ModuleList, nn.Sequential)) else []
        if members and len({type(member) for member in members}) == 1 and all(list(m.children()) for m in members):
            for member in members:
                inner = find_blocks(member, levels - 1) if levels > 1 else []
                found.extend(inner or [member])
        else:
            found.extend(find_blocks(child, levels))
    return found
