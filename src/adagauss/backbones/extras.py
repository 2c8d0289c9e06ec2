"""Helpers for networks of other libraries: lazy imports, finding blocks, measuring the number of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from adagauss.backbones.registry import TrunkSpec
from adagauss.errors import ConfigError
from adagauss.utils import registry as plugins

COLOUR = 3


def import_extra(module: str, extra: str, backbone: str) -> Any:
    """Import an optional library that a backbone needs."""
    return plugins.import_extra(module, extra, f"backbone {backbone!r}")


def require_colour(spec: TrunkSpec, backbone: str) -> None:
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


def parts_that_learn(network: nn.Module) -> list[nn.Module]:
    """The children with parameters, for a network without runs of blocks."""
    return [child for child in network.children() if any(True for _ in child.parameters())]


def _alike(modules: list[nn.Module]) -> bool:
    return len({type(module) for module in modules}) == 1 and all(list(module.children()) for module in modules)
