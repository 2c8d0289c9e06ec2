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
        lacking = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if lacking == module:
            problem = f"which is not installed: pip install 'adagauss[{extra}]'"
        else:
            problem = (
                f"which is installed but does not import ({error}): pip install 'adagauss[{extra}]' in a fresh "
                f"environment, with a {lacking or module} that belongs to this torch ({torch.__version__})"
            )
        raise ConfigError(f"backbone {backbone!r} needs {module}, {problem}") from error


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
    if levels == 0:
        return []
    members = list(network.children())
    if isinstance(network, (nn.ModuleList, nn.Sequential)) and members and _alike(members):
        return [block for member in members for block in find_blocks(member, levels - 1) or [member]]
    return [block for member in members for block in find_blocks(member, levels)]


def parts_that_learn(network: nn.Module) -> list[nn.Module]:
    """The children of a network without runs of blocks, pooling and the like left out."""
    return [child for child in network.children() if any(True for _ in child.parameters())]


def _alike(modules: list[nn.Module]) -> bool:
    return len({type(module) for module in modules}) == 1 and all(list(module.children()) for module in modules)
