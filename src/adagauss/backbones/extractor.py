"""Which network turns images into features: the settings of an extractor."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt, field_validator, model_validator
from torch import Tensor, nn

from adagauss.backbones.external import COLOUR, load_weights
from adagauss.backbones.registry import Backbone, BackboneSpec, Stem, backbone_info, stored_backbone_name
from adagauss.core.config import Config, current_settings, old_names
from adagauss.data.images import Images
from adagauss.distributed.batch_norm import Norm, batch_norms
from adagauss.errors import ConfigError

NAMED_WEIGHTS = ("imagenet", "random")
"""Values of `BackboneConfig.weights` that do not name a file."""
VARIANCE_FLOOR = 1e-6
"""Least variance of a principal component, relative to the largest: others are rounding errors."""


class BackboneConfig(Config):
    """Which network turns images into features."""

    name: str = "resnet18"
    features: PositiveInt | None = 64
    """S, the size of the latent space; None uses the features of the backbone, without a bottleneck."""
    batch_norm: Literal["train", "frozen", "none"] = "train"
    """``train``: statistics and scales move in every task; ``frozen``: they stop after the first task; ``none``: batch
    norms are removed."""
    weights: str | None = None
    """Initial weights of the backbone: a weight file (.safetensors, .pth), ``imagenet`` (the weights that come with the
    backbone) or ``random``. None takes the weights that come with the backbone, or random ones if there are none."""
    stem: Stem = "auto"
    """First layers of a ResNet: ``small`` (3×3), ``halved`` (3×3, stride 2) or ``large`` (7×7, stride 2, pooling);
    ``auto`` depends on the image size."""
    input_size: PositiveInt | None = None
    """Images are resized to this side in pixels; None takes the training size of the backbone's weights."""
    train_blocks: Annotated[str, Field(pattern=r"^(all|none|last:[1-9]\d*)$")] = "all"
    """Which blocks of the backbone learn: ``all``, ``none`` or ``last:N``. The rest is then frozen, including
    the layers before and after the blocks and all batch-norm statistics."""
    train_bottleneck: bool = True
    """Whether the bottleneck learns; in the published ViT runs it keeps its random initial weights."""
    bottleneck_init: Literal["random", "pca"] = "random"
    """``pca``: the bottleneck starts as the principal components of the first task's features, with unit variance."""
    mirror: bool = False
    """Predict from the mean features of an image and its horizontal flip; analytic methods learn from it, too."""
    options: Config | None = None
    """Settings specific to this backbone, if it has any."""

    @model_validator(mode="before")
    @classmethod
    def _own_options(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = current_settings(data, "backbone")
        name = data.get("name", cls.model_fields["name"].default)
        if not isinstance(name, str):
            return data
        name = old_names()["backbones"].get(name, name)
        info, given = backbone_info(name), data.get("options")
        if info.options is None and given is not None:
            raise ConfigError(f"backbone {info.name!r} has no options: set backbone.options=null")
        if info.options is not None and not isinstance(given, info.options):
            given = info.options.of(given or {}, "backbone.options.")
        return {**data, "name": stored_backbone_name(name), "options": given}

    def check(self) -> None:
        """Raise if the backbone does not have what the settings choose."""
        info = backbone_info(self.name)
        if self.stem != "auto" and not info.stems:
            raise ConfigError(f"backbone {info.name!r} has only one stem: leave backbone.stem at auto")
        if self.weights == "imagenet" and not info.carries_weights:
            raise ConfigError(
                f"backbone {info.name!r} comes without weights: set backbone.weights to a file, e.g. torchvision's "
                "resnet18 weights for resnet18, or choose a pretrained backbone such as efficientnet_lite0"
            )

    @field_validator("weights")
    @classmethod
    def _absolute_file(cls, weights: str | None) -> str | None:
        # A run or a learner may be resumed from another directory.
        return weights if weights in (None, *NAMED_WEIGHTS) else str(Path(weights).expanduser().absolute())


def resized(images: Tensor, size: int | None) -> Tensor:
    """(B, C, H, W) floats as squares of ``size`` pixels, antialiased when downsampling; None returns them unchanged."""
    if size is None or images.shape[-2:] == (size, size):
        return images
    shrinks = min(images.shape[-2:]) > size
    return F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=shrinks)


@dataclass(frozen=True)
class ResizedImages:
    """Images of a dataset at the input size of a network."""

    images: Images
    size: int | None

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape
        return (channels, self.size or height, self.size or width)

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> Tensor:
        return resized(self.images.batch(indices).float(), self.size).round().clamp(0, 255).to(torch.uint8)


class Extractor(nn.Module):
    """F: images in 0..1 to S features.

    The bottleneck is a linear map with bias after pooling (the same as a 1×1 convolution before it); nothing follows
    it, so features are signed.
    """

    def __init__(self, trunk: Backbone, config: BackboneConfig, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.trunk = trunk
        self.bottleneck: nn.Module = nn.Identity()
        if config.features is not None:
            linear = nn.Linear(trunk.width, config.features)
            # The rule of the convolutions, N(0, 2 / (k·k·C_out)) with k = 1: features start at a useful scale.
            nn.init.kaiming_normal_(linear.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(linear.bias)
            self.bottleneck = linear
        self.bottleneck.requires_grad_(config.train_bottleneck)
        self.size = config.features or trunk.width
        self.input_size = config.input_size or trunk.input_size
        self.mirror = config.mirror
        self.fixed = config.train_blocks == "none"
        """Whether only the bottleneck learns: the features before it never change."""
        self.learning = _learning_blocks(config, trunk)
        """Positions of the blocks that learn; None if the whole trunk does."""
        if self.learning is not None:
            trunk.requires_grad_(False)
            for block in trunk.blocks()[self.learning]:
                block.requires_grad_(True)
        self.freeze_norm = config.batch_norm == "frozen"
        self.norm_frozen = False
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)
        self.mean: Tensor
        self.std: Tensor

    def input_facts(self) -> dict[str, Any]:
        """Mean, standard deviation and input size for a checkpoint: the files that define them may change later."""
        return {"mean": self.mean.flatten().tolist(), "std": self.std.flatten().tolist(), "size": self.input_size}

    def restore_input(self, facts: Mapping[str, Any]) -> None:
        """Restore the input settings that `input_facts` returned."""
        self.mean = torch.tensor(facts["mean"], device=self.mean.device).view(1, -1, 1, 1)
        self.std = torch.tensor(facts["std"], device=self.std.device).view(1, -1, 1, 1)
        self.input_size = facts["size"]

    @property
    def groups(self) -> tuple[int, ...]:
        """Sizes of the groups of features that belong together."""
        return (self.size,) if isinstance(self.bottleneck, nn.Linear) else self.trunk.groups

    def prepare(self, images: Images, generator: torch.Generator) -> None:
        """Let the backbone learn without labels from the images of the first task."""
        self.trunk.prepare(ResizedImages(images, self.input_size), generator)

    def forward(self, images: Tensor, read: Sequence[bool] | None = None, prediction: bool = False) -> Tensor:
        """Images to features; groups of features that are not ``read`` may be zeros.

        For ``prediction``, a network with ``mirror`` averages over an image and its horizontal flip.
        """
        # For grey images and a backbone that takes colour, the three-channel mean repeats the grey channel.
        pixels = (resized(images, self.input_size) - self.mean) / self.std
        some = (pixels,) if read is None or len(read) == 1 else (pixels, read)
        features: Tensor = self.bottleneck(self.trunk(*some))
        return (features + self(images.flip(3), read)) / 2 if prediction and self.mirror else features

    def frozen(self, images: Tensor) -> Tensor:
        """The output of the layers that never learn, for `learned`: the same in the network before the task."""
        with torch.no_grad():
            pixels = (resized(images, self.input_size) - self.mean) / self.std
            maps: Tensor = self.trunk(pixels) if self.fixed else self.trunk.frozen(pixels)
            return maps

    def learned(self, maps: Tensor) -> Tensor:
        """Features from the output of `frozen`."""
        features: Tensor = self.bottleneck(maps if self.fixed else self.trunk.learned(maps))
        return features

    def without_bottleneck(self) -> Extractor:
        """An extractor with the same trunk that returns its features."""
        twin = copy.copy(self)
        twin._modules = {**self._modules, "bottleneck": nn.Identity()}
        twin.size = self.trunk.width
        return twin

    @torch.no_grad()
    def init_pca(self, features: Tensor) -> None:
        """Start the bottleneck as the principal components of the trunk's ``features``, each with unit variance.

        Components without variance keep their random weights.
        """
        assert isinstance(self.bottleneck, nn.Linear)
        variances, directions = torch.linalg.eigh(torch.cov(features.double().T))
        variances, directions = variances.flip(0)[: self.size], directions.T.flip(0)[: self.size]
        # The largest entry is positive, as in scikit-learn: eigenvectors have no sign of their own.
        directions = directions * directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
        chosen = torch.nonzero(variances > VARIANCE_FLOOR * variances[0]).flatten()
        weight = directions[chosen] / variances[chosen].sqrt().unsqueeze(1)
        self.bottleneck.weight[chosen] = weight.to(self.bottleneck.weight)
        self.bottleneck.bias[chosen] = -(weight @ features.double().mean(0)).to(self.bottleneck.bias)

    def end_first_task(self) -> None:
        """From now on a ``frozen`` batch norm neither updates its statistics nor learns its scales."""
        self.norm_frozen = self.freeze_norm
        if self.norm_frozen:
            for module in batch_norms(self):
                module.requires_grad_(False)
            self.train(self.training)

    def train(self, mode: bool = True) -> Extractor:
        super().train(mode)
        if self.learning is not None:
            # Frozen modules stay in evaluation mode: neither statistics nor dropout change their output.
            self.trunk.eval()
            for block in self.trunk.blocks()[self.learning]:
                block.train(mode)
        if self.norm_frozen:
            for module in batch_norms(self):
                module.eval()
        return self


def build_extractor(
    config: BackboneConfig,
    shape: tuple[int, int, int],
    mean: Sequence[float],
    std: Sequence[float],
    initial_weights: bool = True,
) -> Extractor:
    """The extractor for images of ``shape`` (channels, height, width).

    Normalisation and input size are those of the backbone if it defines them, else those of the dataset.

    Args:
        config: which network, and how it learns.
        shape: of the images.
        mean: of the dataset's channels.
        std: of the dataset's channels.
        initial_weights: False leaves the network random and reads no weight file: for a caller that then loads all
            parameters from a checkpoint, on a machine that may not have the file.
    """
    config.check()
    info = backbone_info(config.name)
    channels, height, width = shape
    if channels == 1 and info.carries_weights:
        channels = COLOUR
    file = None if config.weights in (None, *NAMED_WEIGHTS) else config.weights
    spec = BackboneSpec(
        channels,
        config.input_size or min(height, width),
        (height, width),
        config.stem,
        pretrained={"imagenet": True, None: None}.get(config.weights, False) if initial_weights else False,
        input_size=config.input_size,
        from_file=file is not None,
        options=config.options,
    )
    trunk = info.build(spec)
    if file and initial_weights:
        load_weights(trunk.pretrained_module(), file, config.name, trunk.heads)
    if config.batch_norm == "none":
        _remove_batch_norm(trunk)
    mean, std = (
        list(values) if len(values) == channels else [sum(values) / len(values)] * channels
        for values in (trunk.mean or mean, trunk.std or std)
    )
    return Extractor(trunk, config, mean, std)


def _learning_blocks(config: BackboneConfig, trunk: Backbone) -> slice | None:
    """Positions of the blocks that learn; None if the whole trunk does."""
    if config.train_blocks == "all":
        return None
    count, blocks = int(config.train_blocks.partition(":")[2] or 0), len(trunk.blocks())
    if count > blocks:
        raise ConfigError(
            f"backbone.train_blocks={config.train_blocks}: {config.name} has {blocks} blocks; use all, or fewer"
        )
    return slice(blocks - count, blocks)


def _remove_batch_norm(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, Norm):
            setattr(module, name, getattr(child, "act", nn.Identity()))  # timm's norms hold the activation too
        else:
            _remove_batch_norm(child)
