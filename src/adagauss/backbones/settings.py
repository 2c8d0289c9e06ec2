"""Which network turns images into features: the settings of an extractor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PositiveInt, field_validator, model_validator

from adagauss.backbones.registry import Stem, backbone_info
from adagauss.core.config import Config
from adagauss.errors import ConfigError

BatchNormPolicy = Literal["train", "frozen", "none"]
NAMED_WEIGHTS = ("imagenet", "random")
"""Values of `BackboneConfig.weights` that do not name a file."""


def _known_share(value: str) -> str:
    if not re.fullmatch(r"all|none|last:[1-9]\d*", value):
        raise ValueError("write all, none, or last:N with N a number of blocks")
    return value


class BackboneConfig(Config):
    """Which network turns images into features."""

    name: str = "resnet18"
    features: PositiveInt | None = 64
    """S, the size of the latent space; None uses the features of the trunk, without a bottleneck."""
    batch_norm: BatchNormPolicy = "train"
    """``train``: statistics and scales move in every task; ``frozen``: they stop after the first task; ``none``: there
    are no batch norms."""
    weights: str | None = None
    """Initial weights of the trunk: a weight file (.safetensors, .pth), ``imagenet`` (the weights that come with the
    backbone) or ``random``. None takes the weights that come with the backbone, or random ones if there are none."""
    initialization: Literal["he", "torch"] = "he"
    """Initialisation of random convolutions and the bottleneck: He's rule, or torch's (the published ResNet-32)."""
    stem: Stem = "auto"
    """First layers of a ResNet: ``small`` (3×3), ``halved`` (3×3, stride 2) or ``large`` (7×7, stride 2, pooling);
    ``auto`` depends on the image size."""
    input_size: PositiveInt | None = None
    """Side in pixels that images are resized to; None takes the training size of the backbone's weights."""
    train_blocks: Annotated[str, AfterValidator(_known_share)] = "all"
    """Which blocks of the trunk learn: ``all``, ``none`` or ``last:N``. The rest of the trunk is then frozen, including
    the layers before and after the blocks and all batch-norm statistics."""
    train_bottleneck: bool = True
    """Whether the bottleneck learns; in the published ViT runs it keeps its random initial weights."""
    mirror: bool = False
    """Predict from the mean of the features of an image and of its mirror image; exact methods learn from it, too."""
    options: Config | None = None
    """Settings specific to this backbone, if it has any."""
    companion: BackboneConfig | None = None
    """A second network beside this one that is never trained: predictions see the features of both."""

    @model_validator(mode="before")
    @classmethod
    def _own_options(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name = data.get("name", cls.model_fields["name"].default)
        if not isinstance(name, str):
            return data
        info = backbone_info(name)
        given = data.get("options")
        if info.options is None:
            if given is not None:
                raise ConfigError(f"backbone {info.name!r} has no options: set backbone.options=null")
        elif not isinstance(given, info.options):
            data = {**data, "options": info.options.of(given or {}, "backbone.options.")}
        return data

    @field_validator("companion")
    @classmethod
    def _one_companion(cls, companion: BackboneConfig | None) -> BackboneConfig | None:
        if companion is not None and companion.companion is not None:
            raise ValueError("a companion has no companion of its own: set backbone.companion.companion=null")
        return companion

    @field_validator("weights")
    @classmethod
    def _absolute_file(cls, weights: str | None) -> str | None:
        # A run or a learner may be resumed from another directory.
        return weights if weights in (None, *NAMED_WEIGHTS) else str(Path(weights).expanduser().absolute())

    @field_validator("name")
    @classmethod
    def _absolute_folder(cls, name: str) -> str:
        prefix, _, model = name.partition(":")
        is_folder = prefix == "hf" and model and Path(model).expanduser().is_dir()
        return f"{prefix}:{Path(model).expanduser().absolute()}" if is_folder else name
