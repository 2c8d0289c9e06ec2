"""Backbones by name; adding one is one decorated function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, nn

from adagauss.config import Config
from adagauss.data.images import Images
from adagauss.errors import ConfigError, unknown_name
from adagauss.registry import Registry

Stem = Literal["auto", "small", "halved", "large"]


class Trunk(nn.Module):
    """Images, already normalised, to ``width`` features."""

    mean: Sequence[float] | None = None
    """Mean of each channel the weights were made for; None takes the dataset's."""
    std: Sequence[float] | None = None
    input_size: int | None = None
    """Side in pixels the weights were made for; None takes images as they are."""
    heads: tuple[str, ...] = ("fc.",)
    """How names of a classifier's parameters start in a weight file: these are not loaded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @property
    def groups(self) -> tuple[int, ...]:
        """Sizes of the groups of features that belong together; one group for most trunks."""
        return (self.width,)

    def blocks(self) -> list[nn.Module]:
        """Its blocks from input to output, for training only the last ones."""
        return list(self.children())

    def prepare(self, images: Images, generator: torch.Generator) -> None:
        """Learn what needs no labels from the first task's images, before anything else; nothing for most trunks."""

    def named_as_in_files(self) -> nn.Module:
        """The module whose parameters are called as in weight files: the trunk itself, unless it wraps another."""
        return self

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) images to (B, width) features."""
        raise TypeError(f"{type(self).__name__} must define forward")


@dataclass(frozen=True)
class TrunkSpec:
    """What a trunk is built for."""

    channels: int
    image_size: int
    """Shorter side of the images in pixels, as the trunk will see them."""
    shape: tuple[int, int] = (0, 0)
    """Height and width of the images as they come."""
    stem: Stem = "auto"
    pretrained: bool | None = None
    """Load the weights that come with the backbone: True, False, or None for 'if there are any'."""
    input_size: int | None = None
    """Side the images will be resized to, if the user says so."""
    from_file: bool = False
    """Whether a weight file of the user's will be loaded into it."""
    options: Config | None = None
    """Settings of the backbone's own."""


Builder = Callable[[TrunkSpec], Trunk]


@dataclass(frozen=True)
class BackboneInfo:
    """A registered backbone."""

    name: str
    summary: str
    build: Builder
    stems: bool = False
    """Whether it has a stem for small and one for large images."""
    carries_weights: bool = False
    """Whether it comes with pretrained weights; such a backbone takes colour images (grey ones are repeated)."""
    modules: tuple[str, ...] = ()
    """What must be installed for it beyond the library's own dependencies."""
    non_negative: bool = False
    """Whether it ends in a rectifier, so that its features are never negative."""
    options: type[Config] | None = None
    """Settings of its own, under ``backbone.options``."""

    @property
    def available(self) -> bool:
        """Whether everything it needs is installed."""
        return all(find_spec(module) is not None for module in self.modules)


_BACKBONES: Registry[BackboneInfo] = Registry("backbone", "adagauss.backbones")
_FAMILIES: Registry[Callable[[str], BackboneInfo]] = Registry("family of backbones", "adagauss.backbones")


def register_backbone(
    name: str,
    *,
    summary: str,
    stems: bool = False,
    carries_weights: bool = False,
    modules: Sequence[str] = (),
    non_negative: bool = False,
    options: type[Config] | None = None,
) -> Callable[[Builder], Builder]:
    """Put a builder into the registry under ``name``."""

    def register(build: Builder) -> Builder:
        info = BackboneInfo(name, summary, build, stems, carries_weights, tuple(modules), non_negative, options)
        _BACKBONES.register(name, info, by=build)
        return build

    return register


def register_family(
    prefix: str, *, summary: str, modules: Sequence[str]
) -> Callable[[Callable[[str, TrunkSpec], Trunk]], Callable[[str, TrunkSpec], Trunk]]:
    """Put a builder of another library's models into the registry: ``prefix:NAME`` is its model ``NAME``."""

    def register(build: Callable[[str, TrunkSpec], Trunk]) -> Callable[[str, TrunkSpec], Trunk]:
        def describe(model: str) -> BackboneInfo:
            name, of_model = f"{prefix}:{model}", partial(build, model)
            return BackboneInfo(name, summary, of_model, carries_weights=True, modules=tuple(modules))

        _FAMILIES.register(prefix, describe, by=build)
        return build

    return register


def backbones() -> dict[str, BackboneInfo]:
    """All registered backbones by name."""
    return _BACKBONES.all()


def families() -> dict[str, BackboneInfo]:
    """The libraries whose models can be used, by the form of their names: ``timm:NAME``."""
    return {f"{prefix}:NAME": describe("NAME") for prefix, describe in _FAMILIES.all().items()}


def backbone_info(name: str) -> BackboneInfo:
    """One backbone; an unknown name raises with the nearest known one."""
    prefix, colon, model = name.partition(":")
    if colon and prefix in _FAMILIES:
        if not model:
            raise ConfigError(f"backbone {name!r} names no model: write {prefix}:NAME")
        return _FAMILIES.find(prefix)(model)
    if name not in _BACKBONES:
        raise unknown_name("backbone", name, [*backbones(), *families()])
    return _BACKBONES.find(name)
