"""Backbones by name; a new backbone is one decorated function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn

from adagauss.core.config import TIMM, Config
from adagauss.data.images import Images
from adagauss.errors import ConfigError, unknown_name
from adagauss.utils.registry import Registry

Stem = Literal["auto", "small", "halved", "large"]


class Backbone(nn.Module):
    """A network that maps normalised images to ``width`` features."""

    mean: Sequence[float] | None = None
    """Mean of each channel the weights were trained with; None takes the dataset's."""
    std: Sequence[float] | None = None
    input_size: int | None = None
    """Side in pixels the weights were trained at; None takes images as they are."""
    size_setting = "backbone.name"
    """The setting that decides the number of features."""
    has_frozen = False
    """Whether it has first layers that no method trains; see `frozen`."""
    heads: tuple[str, ...] = ("fc.",)
    """Prefixes of the classifier's parameter names in a weight file: these are not loaded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.groups: tuple[int, ...] = (width,)
        """Sizes of the groups of features that belong together; ``forward`` of a backbone with several also takes
        which groups to ``read``, and may return zeros for the others."""

    def blocks(self) -> list[nn.Module]:
        """The blocks from input to output, for training only the last ones."""
        return list(self.children())

    def prepare(self, images: Images, generator: torch.Generator) -> None:
        """Learn without labels from the images of the first task, before training; most backbones do nothing."""

    def pretrained_module(self) -> nn.Module:
        """The module whose parameters are named as in weight files: the backbone, unless it wraps a module."""
        return self

    def frozen(self, images: Tensor) -> Tensor:
        """The output of the layers that no method trains, for `learned`; by default, the images themselves.

        A method runs them once per batch for the old and the new network.
        """
        return images

    def augmented(self, maps: Tensor, generator: torch.Generator) -> Tensor:
        """The output of `frozen`, randomly changed for a training step; by default unchanged.

        It must draw the same numbers for any part of a batch: several processes have parts of one batch.
        """
        return maps

    def learned(self, maps: Tensor) -> Tensor:
        """The features from the output of `frozen`."""
        features: Tensor = self(maps)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) images to (B, width) features."""
        raise TypeError(f"{type(self).__name__} must define forward")


@dataclass(frozen=True)
class BackboneSpec:
    """What a backbone is built for."""

    channels: int
    image_size: int
    """Shorter side in pixels of the images that the backbone receives."""
    shape: tuple[int, int] = (0, 0)
    """Height and width of the images before resizing."""
    stem: Stem = "auto"
    pretrained: bool | None = None
    """Load the weights that come with the backbone: True, False, or None for 'if there are any'."""
    input_size: int | None = None
    """Side the images are resized to, if the user sets it."""
    from_file: bool = False
    """Whether a weight file of the user will be loaded."""
    options: Config | None = None
    """Settings specific to the backbone."""


Builder = Callable[[BackboneSpec], Backbone]


@dataclass(frozen=True)
class BackboneInfo:
    """A registered backbone."""

    name: str
    summary: str
    build: Builder
    stems: bool = False
    """Whether it has one stem for small and one for large images."""
    carries_weights: bool = False
    """Whether it comes with pretrained weights; such a backbone takes colour images (grey ones are repeated)."""
    modules: tuple[str, ...] = ()
    """Modules it needs beyond the dependencies of the library."""
    non_negative: bool = False
    """Whether it ends in a rectifier, so that its features are never negative."""
    options: type[Config] | None = None
    """Settings specific to it, under ``backbone.options``."""

    @property
    def available(self) -> bool:
        """Whether everything it needs is installed."""
        return all(find_spec(module) is not None for module in self.modules)


_BACKBONES: Registry[BackboneInfo] = Registry("backbone", "adagauss.backbones")


def register_backbone(name: str, **facts: Any) -> Callable[[Builder], Builder]:
    """Register a builder.

    Args:
        name: of the backbone.
        **facts: other fields of `BackboneInfo`, except ``build``, which is the decorated function.
    """

    def register(build: Builder) -> Builder:
        _BACKBONES.register(name, BackboneInfo(name=name, build=build, **facts), by=build)
        return build

    return register


def backbones() -> dict[str, BackboneInfo]:
    """All registered backbones by name."""
    return _BACKBONES.all()


def backbone_info(name: str) -> BackboneInfo:
    """One backbone; an unknown name raises with the nearest known one.

    ``module:name`` is a backbone of another module, which must be imported.
    """
    if name.startswith(TIMM):
        from adagauss.backbones.external import timm_model

        if not (model := name.removeprefix(TIMM)):
            raise ConfigError(f"backbone {name!r} names no model: write {TIMM}NAME")
        build = partial(timm_model, model)
        return BackboneInfo(
            name, "a model of timm by its name (extra: timm)", build, False, True, ("timm", "torchvision")
        )
    if ":" not in name and name not in _BACKBONES:
        raise unknown_name("backbone", name, [*backbones(), f"{TIMM}NAME"])
    return _BACKBONES.find(name)


def stored_backbone_name(name: str) -> str:
    """The name of a backbone as files store it, with the module if it is not of this package."""
    return _BACKBONES.stored_name(backbone_info(name).name)
