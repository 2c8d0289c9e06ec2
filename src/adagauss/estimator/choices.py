"""What the few words of a user mean: the method for an effort, whole numbers, progress."""

from __future__ import annotations

import json
import operator
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from PIL import Image

from adagauss.backbones.registry import backbone_info
from adagauss.core.config import Layer
from adagauss.data.dataset import Trait
from adagauss.errors import ConfigError, unknown_name
from adagauss.inputs import ImagesLike
from adagauss.methods import Method, make_method
from adagauss.methods.traits import trait_layers
from adagauss.utils.progress import Reporter, reporter_for

PRETRAINED = "efficientnet_lite0"
Settings = Mapping[str, Any]


def default_method() -> str:
    """The method for photographs on a CPU: the best there is without training."""
    if backbone_info(PRETRAINED).available:
        return "exact-auto"
    warnings.warn(
        "no pretrained network is installed, so image patches are used; photographs are recognised far better with "
        "one: pip install 'adagauss[pretrained]'",
        stacklevel=2,
    )
    return "exact"


def efforts() -> dict[str, dict[str, tuple[str, Settings]]]:
    """What each effort means: by a name for people, methods and their settings. Of several, the best is kept.

    ``quick`` takes half the time of ``good`` with a pretrained network, since it sees smaller images.
    """
    if backbone_info(PRETRAINED).available:
        quick: tuple[str, Settings] = ("exact-pretrained", {"backbone.input_size": 160})
        more: dict[str, tuple[str, Settings]] = {"mirror images as well": ("exact-auto", {"backbone.mirror": True})}
    else:
        quick = ("exact", {"backbone.options.filters": 200})
        more = {"more patches": ("exact", {"backbone.options.filters": 1000})}
    usual: dict[str, tuple[str, Settings]] = {"the usual method": ("", {})}
    return {"quick": {"the quick method": quick}, "good": usual, "best": {**usual, **more}}


@dataclass(frozen=True)
class Words:
    """What a user says about the method, in the words of `IncrementalClassifier`."""

    method: str | None
    preset: str | None
    effort: str
    settings: Mapping[str, Any] | None
    epochs: int | None
    backbone: str | None

    def methods(self, photographs: bool) -> dict[str, Method]:
        """The method that is meant, for photographs or bare numbers; several if the effort is to try them."""
        meant = efforts()
        if self.effort not in meant:
            raise unknown_name("effort", self.effort, meant)
        if self.effort != "good" and (self.method or self.preset or self.backbone):
            raise ConfigError(
                f"effort={self.effort!r} chooses the method itself: leave method, preset and backbone out, or effort"
            )
        layers = trait_layers([Trait.PHOTOGRAPHS]) if photographs else []
        return {
            title: self._method(name or self.method or default_method(), [*layers, Layer("effort", settings)])
            for title, (name, settings) in meant[self.effort].items()
        }

    def _method(self, name: str, layers: list[Layer]) -> Method:
        if not isinstance(self.settings, Mapping | None):
            raise ConfigError(f"settings must be a dictionary of dotted names and values; got {self.settings!r}")
        own = dict(self.settings or {})
        if self.backbone is not None:
            own = {"backbone.name": self.backbone, **own}
        epochs = None if self.epochs is None else whole("epochs", self.epochs)
        method = make_method(name, self.preset, own, layers, epochs)
        if epochs is not None and not method.trains:
            raise ConfigError(f"the method {name!r} trains nothing: leave epochs out")
        return method


def told_apart(images: ImagesLike) -> tuple[ImagesLike, bool]:
    """The images, and whether they are files or pictures rather than bare numbers.

    >>> shown, photographs = told_apart(Image.new("RGB", (2, 2)) for _ in range(3))
    >>> photographs, len(list(shown))
    (True, 3)
    """
    some: object = images
    if isinstance(images, Iterator):
        begun = list(islice(images, 1))  # what was taken from it to look at is put before the rest again
        some, images = (begun or [None])[0], chain(begun, images)
    elif isinstance(images, Sequence | np.ndarray) and len(images) and not isinstance(images, str):
        some = images[0]
    return images, isinstance(some, str | os.PathLike | Image.Image)


def whole(name: str, value: object, least: int | None = None) -> int:
    """A whole number of any type, or an error that names the setting."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name} must be a whole number; got {value!r}") from None
    if least is not None and number < least:
        raise ConfigError(f"{name} must be at least {least}; got {number}")
    return number


def json_ready(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they can be written to a file: numbers as such, other objects by their text."""

    def plain(value: Any) -> Any:
        return value.item() if isinstance(value, np.generic) else str(value)

    ready: dict[str, Any] = json.loads(json.dumps(dict(parameters), default=plain))
    return ready


def progress_reporter(verbose: bool) -> Reporter:
    """On standard error, or none."""
    if not verbose:
        return Reporter()
    from rich.console import Console

    return reporter_for(Console(stderr=True))
