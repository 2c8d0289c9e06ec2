"""Features that nothing ever taught: states of fixed random reservoirs that run over an image in two directions."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from adagauss.backbones.registry import Backbone, BackboneSpec, register_backbone
from adagauss.core.config import Config
from adagauss.errors import ConfigError

SIDE = 32
"""Larger images are brought to this side unless another is asked for."""
MEAN, STD = 0.5, 0.25
"""Of pixels in 0..1, for any dataset: the features know nothing of the data."""


class ReservoirSettings(Config):
    """How many reservoirs there are, and how each of them runs."""

    groups: PositiveInt = 4
    """Groups of reservoirs; a classifier may have one head for each."""
    reservoirs: PositiveInt = 2
    """Reservoirs in a group: each is a random draw of its own."""
    units: PositiveInt = 64
    """Size of the state of a reservoir."""
    patch: PositiveInt = 5
    """Side in pixels of what a state is fed."""
    stride: PositiveInt = 2
    """Pixels from one state to the next, in both directions."""
    grid: PositiveInt = 2
    """States are averaged over the cells of a grid × grid division of the image."""
    radius: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Sum of the spectral radii of both recurrent matrices; below 1, what a state remembers fades."""
    input_scale: PositiveFloat = 1.0
    """Deviation of what the patches add to a state, where pixels have deviation 1."""


class Reservoirs(nn.Module):
    """h(i, j) = tanh(V·u(i, j) + b + R·h(i, j − 1) + D·h(i − 1, j)), and the same from the opposite corner.

    u(i, j) are patches of the image; V, b, R and D are random and fixed. States of one anti-diagonal depend only on the
    one before it, so all its states are computed at once.
    """

    def __init__(self, settings: ReservoirSettings, channels: int) -> None:
        super().__init__()
        self.settings = settings
        number, units, patch = settings.reservoirs, settings.units, settings.patch
        fed = channels * patch**2
        self.register_buffer(
            "feed", torch.randn(number * units, channels, patch, patch) * settings.input_scale / fed**0.5
        )
        self.register_buffer("shift", torch.randn(number * units) * settings.input_scale / 2)
        across, down = torch.randn(2, number, units, units)
        self.register_buffer("across", _of_radius(across, settings.radius / 2))
        self.register_buffer("down", _of_radius(down, settings.radius / 2))
        self.feed: Tensor
        self.shift: Tensor
        self.across: Tensor
        self.down: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to (B, 2 · reservoirs · units · grid²) means of states over the cells of the grid."""
        settings = self.settings
        fed = F.conv2d(images, self.feed, self.shift, settings.stride, settings.patch // 2)
        height, width = fed.shape[2:]
        # Both directions, as reservoirs × (direction, image, row) × column × unit; row i moves i columns to the right.
        both = torch.stack([fed, fed.flip(2, 3)]).view(2, -1, settings.reservoirs, settings.units, height, width)
        fed = _skewed(both.permute(2, 0, 1, 4, 5, 3))
        weights = torch.cat([self.across, self.down], 1)
        state = torch.zeros_like(fed[..., 0, :])
        states = []
        for column in range(height + width - 1):
            first, last = max(0, column - width + 1), min(height, column + 1)
            above = F.pad(state, (0, 0, 1, 0))[..., first:last, :]
            beside = torch.cat([state[..., first:last, :], above], -1)
            moved = torch.bmm(beside.flatten(1, 3), weights).view_as(above)
            state = F.pad(torch.tanh(fed[..., first:last, column, :] + moved), (0, 0, first, height - last))
            states.append(state)
        found = _unskewed(torch.stack(states, -2), width)
        forwards, backwards = found.permute(1, 2, 0, 5, 3, 4).flatten(2, 3).unbind(0)
        maps = torch.cat([forwards, backwards.flip(2, 3)], 1)
        pooled: Tensor = F.adaptive_avg_pool2d(maps, settings.grid)
        return pooled.flatten(1)


def _of_radius(matrices: Tensor, radius: float) -> Tensor:
    """Matrices scaled to a spectral radius."""
    largest: Tensor = torch.linalg.eigvals(matrices).abs().amax(-1).clamp_min(1e-6)
    return matrices * (radius / largest)[:, None, None]


def _skewed(maps: Tensor) -> Tensor:
    """(..., H, W, N) as (..., H, H + W − 1, N) with row i moved i columns to the right, zeros around it."""
    height, width = maps.shape[-3:-1]
    flat = F.pad(maps, (0, 0, 0, height)).flatten(-3, -2)[..., : height * (width + height - 1), :]
    return flat.reshape(*maps.shape[:-3], height, width + height - 1, maps.shape[-1])


def _unskewed(maps: Tensor, width: int) -> Tensor:
    """The inverse of `_skewed`."""
    height = maps.shape[-3]
    flat = F.pad(maps.flatten(-3, -2), (0, 0, 0, height))
    return flat.reshape(*maps.shape[:-3], height, width + height, maps.shape[-1])[..., :width, :]


class ReservoirTrunk(Backbone):
    """Groups of reservoirs side by side. It has no parameters: nothing is ever trained."""

    def __init__(self, settings: ReservoirSettings, channels: int, input_size: int | None) -> None:
        each = 2 * settings.reservoirs * settings.units * settings.grid**2
        super().__init__(settings.groups * each)
        self.settings = settings
        self.members = nn.ModuleList(Reservoirs(settings, channels) for _ in range(settings.groups))
        self.input_size = input_size
        self.mean, self.std = (MEAN,) * channels, (STD,) * channels

    @property
    def groups(self) -> tuple[int, ...]:
        return (self.width // self.settings.groups,) * self.settings.groups

    def smaller_setting_hint(self, width: int) -> str:
        return f"{self.where}.options.groups={max(1, width * self.settings.groups // self.width)}"

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([group(images) for group in self.members], 1)


@register_backbone(
    "reservoirs",
    summary="groups of fixed random two-dimensional reservoirs, which are never fitted to any image",
    options=ReservoirSettings,
)
def reservoirs(spec: BackboneSpec) -> Backbone:
    """The features of `circle`."""
    assert isinstance(spec.options, ReservoirSettings)
    shorter = min(spec.shape)
    side = spec.input_size or (SIDE if shorter > SIDE else None)
    cells = -(-(side or shorter) // spec.options.stride)
    if cells < spec.options.grid:
        raise ConfigError(
            f"images of {side or shorter} pixels give {cells} × {cells} states, fewer than the cells of a grid of "
            f"{spec.options.grid}: set backbone.options.stride=1 or backbone.options.grid=1"
        )
    return ReservoirTrunk(spec.options, spec.channels, side)
