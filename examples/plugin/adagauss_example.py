"""A drift compensation with a state, and a method, a backbone, a dataset and a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from adagauss import (
    ArrayImages,
    Backbone,
    BackboneSpec,
    ClassGaussians,
    CurrentTask,
    Dataset,
    Drift,
    Evaluation,
    LabelledImages,
    Method,
    ReadOptions,
    SharedState,
    make_method,
    register_backbone,
    register_dataset,
    register_method,
    register_metric,
)


class Velocity(SharedState):
    """The mean shift of all features in the last task; ``s`` is the number of features."""

    dims: ClassVar = {"shift": "s"}


class Momentum(Drift):
    """μ_c ← μ_c + δ_t + momentum · δ_{t−1}, where δ_t is the mean shift of the features in task t."""

    kind = "momentum"
    momentum: float = 0.1

    def move(self, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        shift = mean_shift(now)
        if isinstance(now.drift_state, Velocity):
            shift = shift + self.momentum * now.drift_state.shift
        return memory.with_statistics(memory.means + shift, None)

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> Velocity | None:
        return None if now.first else Velocity(shift=mean_shift(now))

    def empty_state(self) -> Velocity:
        return Velocity()


def mean_shift(now: CurrentTask) -> Tensor:
    """mean_i (F_t(x_i) − F_{t−1}(x_i))."""
    return (now.features() - now.features(previous=True)).double().mean(0)


@register_method("momentum", title="Momentum", family="own", stores="mean of each class", paper="none")
def momentum() -> Method:
    """SDC with another drift compensation."""
    return make_method("sdc").model_copy(update={"drift": Momentum()})


class TinyNet(Backbone):
    """Two convolutions and a mean over positions."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__(width)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, width, 3, stride=2), nn.ReLU()
        )

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)
        return maps.mean((2, 3))


@register_backbone("tiny_net", summary="two convolutions", non_negative=True)
def tiny_net(spec: BackboneSpec) -> Backbone:
    """TinyNet for any number of channels."""
    return TinyNet(spec.channels)


@register_dataset("stripes", title="Stripes", classes=6, images="240 of 12 × 12", licence="none", folder="")
def stripes(options: ReadOptions) -> Dataset:
    """Stripes in six directions, with noise."""
    return Dataset("stripes", _stripes(30, seed=0), _stripes(10, seed=1), mean=(0.5,), std=(0.3,))


def _stripes(each: int, seed: int) -> LabelledImages:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(6).repeat(each)
    angles = labels.view(-1, 1, 1) * torch.pi / 6
    across = torch.arange(12.0).view(1, -1, 1) * angles.cos() + torch.arange(12.0).view(1, 1, -1) * angles.sin()
    phases = 6 * torch.rand(len(labels), 1, 1, generator=random)
    images = 0.5 + 0.3 * (1.5 * across + phases).sin() + 0.05 * torch.randn(len(labels), 12, 12, generator=random)
    return LabelledImages.from_labels(ArrayImages(images.clamp(0, 1)), labels.tolist())


@register_metric("worst_task", "worst task")
def worst_task(evaluations: Sequence[Evaluation]) -> float:
    """The lowest final accuracy of a task."""
    return min(evaluations[-1].accuracy_per_task())
