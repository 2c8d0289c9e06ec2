"""Backbones by name; adding one is one decorated function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from adagauss.errors import unknown_name


class Trunk(nn.Module):
    """Images, already normalised, to ``width`` features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def blocks(self) -> list[nn.Module]:
        """Its blocks from input to output, for training only the last ones."""
        return list(self.children())

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) images to (B, width) features."""
        raise TypeError(f"{type(self).__name__} must define forward")


Builder = Callable[[int, int], Trunk]


@dataclass(frozen=True)
class BackboneInfo:
    """A registered backbone."""

    name: str
    summary: str
    build: Builder
    """Called with the number of channels and the image side in pixels."""


_BACKBONES: dict[str, BackboneInfo] = {}


def register_backbone(name: str, *, summary: str) -> Callable[[Builder], Builder]:
    """Put a builder into the registry under ``name``."""

    def register(build: Builder) -> Builder:
        _BACKBONES[name] = BackboneInfo(name, summary, build)
        return build

    return register


def backbones() -> dict[str, BackboneInfo]:
    """All registered backbones by name."""
    return dict(sorted(_BACKBONES.items()))


def backbone_info(name: str) -> BackboneInfo:
    """One backbone; an unknown name raises with the nearest known one."""
    if name not in _BACKBONES:
        raise unknown_name("backbone", name, _BACKBONES)
    return _BACKBONES[name]
