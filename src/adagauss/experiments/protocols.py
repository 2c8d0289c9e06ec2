"""Protocols by name and scale: the paper's benchmarks, and reduced, few-class and full versions for a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import yaml

from adagauss.backbones.registry import backbone_info
from adagauss.core.config import Layer
from adagauss.data.dataset import dataset_info
from adagauss.data.stream import StreamConfig, task_sizes
from adagauss.errors import ConfigError, unknown_name
from adagauss.methods import Method

Settings = Mapping[str, Any]
SCALES = ("paper", "cpu", "few", "fast")
RUNTIME = "runtime."
"""Start of the settings of a scale that are not those of a method."""
FEW_CLASSES = 2
"""Classes of a task at the scale ``few``."""


@dataclass(frozen=True)
class Protocol:
    """A stream of tasks with the hyperparameters of the corresponding rows in the paper's tables."""

    name: str
    stream: StreamConfig
    settings: Settings
    """Settings for any method; a method ignores those that it does not have."""
    preset_settings: Mapping[str, Settings] = field(default_factory=dict)
    """Further settings for a preset of AdaGauss, such as the λ that the published code uses on this dataset."""
    scale: str = "paper"
    cpu: Settings = field(default_factory=dict)
    """Settings at the scale ``cpu``."""
    fast: Settings = field(default_factory=dict)
    """Settings at the scale ``fast``; empty if there is no such scale."""
    runtime: Settings = field(default_factory=dict)
    """Settings of `RuntimeConfig` that the user has not chosen."""
    cpu_image_size: int = 32
    cpu_classes: int | None = None
    """Number of classes at the CPU scale, if not all are used."""
    needs_weights: bool = False
    """Whether the network starts from a weight file of the user."""

    @property
    def layer_name(self) -> str:
        """The origin of its settings in a run."""
        return f"protocol {self.name}"

    def check_weights(self, method: Method) -> None:
        """Refuse a network with random weights if the protocol needs a pretrained one."""
        backbone = method.backbone
        if not method.trains:
            return
        if self.needs_weights and backbone.weights is None and not backbone_info(backbone.name).carries_weights:
            raise ConfigError(
                f"{self.name} starts from ImageNet weights: give torchvision's file, "
                "--set backbone.weights=resnet18-f37072fd.pth, or choose random weights, --set backbone.weights=random"
            )

    def layers(self, preset: str | None, recipe: Settings | None = None) -> list[Layer]:
        """The settings of the protocol for a preset; a recipe for all methods overrides those of the preset."""
        own = Layer(f"preset {preset} in protocol", self.preset_settings.get(preset or "", {}), strict=False)
        return [own.without(recipe or {}), Layer(self.layer_name, self.settings, strict=False)]

    def at(self, scale: str) -> Protocol:
        """The same tasks for a few CPU cores.

        ``cpu``: a small network, fewer epochs, smaller image files, at most 100 classes. ``few``: also two classes per
        task, or half of all classes first. ``fast``: all classes and images, with a network that learns in less than
        an hour on one core.
        """
        stream = self.stream
        settings: Settings = {"cpu": self.cpu, "few": _DATA["few"]["settings"], "fast": self.fast}[scale]
        if not settings:
            possible = ", ".join(one.name for one in PROTOCOLS.values() if one.fast)
            raise ConfigError(f"{self.name} has no scale fast; use --scale cpu, or one of {possible}")
        if scale == "few" and self.needs_weights:
            raise ConfigError(f"{self.name} starts from pretrained weights and has no scale few; use --scale cpu")
        runtime = {key: value for key, value in settings.items() if key.startswith(RUNTIME)}
        classes, first, size = stream.classes, stream.first, stream.image_size
        if scale == "cpu":
            classes, size = self.cpu_classes, size and self.cpu_image_size
            first = classes // 2 if classes and first else first
        elif scale == "few":
            later = stream.tasks - bool(first)
            first = later * FEW_CLASSES if first else None
            classes = later * FEW_CLASSES + (first or 0)
            # Image files are as small as those of CIFAR-100, which the thin network was made for.
            size = None if stream.dataset == "cifar100" else self.cpu_image_size
        return replace(
            self,
            name=f"{self.name}-{scale}",
            stream=stream.model_copy(update={"classes": classes, "first": first, "image_size": size}),
            settings={**self.settings, **{key: settings[key] for key in settings if key not in runtime}},
            runtime={key.removeprefix(RUNTIME): value for key, value in runtime.items()},
            preset_settings=self.preset_settings if scale == "cpu" else _DATA["few"]["preset_settings"],
            scale="cpu",
            needs_weights=self.needs_weights and scale != "cpu",
        )


def _protocols(benchmark: Mapping[str, Any]) -> list[Protocol]:
    """The protocols of an entry of the file: its numbers of tasks, equal ones and those after half of the classes."""
    details = dict(benchmark)
    prefix, classes = details.pop("prefix"), details.pop("classes")
    shape = {key: details.pop(key, None) for key in ("dataset", "class_order", "image_size")}
    found = [
        (f"{prefix}-{tasks}", StreamConfig(tasks=tasks, first=None, **shape)) for tasks in details.pop("tasks")
    ] + [
        # T counts the tasks after the first half of the classes, as in most papers with such a first task.
        (f"{prefix}-half-{tasks}", StreamConfig(tasks=tasks + 1, first=classes // 2, **shape))
        for tasks in details.pop("half", ())
    ]
    return [Protocol(name, stream, **details) for name, stream in found]


_DATA = yaml.safe_load(resources.files("adagauss.experiments").joinpath("protocols.yaml").read_text(encoding="utf-8"))
PROTOCOLS = {one.name: one for benchmark in _DATA["benchmarks"] for one in _protocols(benchmark)}


def protocol(name: str, scale: str | None = None) -> Protocol:
    """A protocol by name and scale; the names ``NAME-cpu``, ``NAME-few`` and ``NAME-fast`` include the scale.

    >>> protocol("cifar100-10").stream.tasks, protocol("cifar100-10", "cpu").name
    (10, 'cifar100-10-cpu')
    """
    base, _, suffix = name.rpartition("-")
    if suffix in SCALES[1:] and base in PROTOCOLS:
        if scale not in (None, suffix):
            raise ConfigError(f"{name} has the scale {suffix}; leave out --scale {scale}, or use {base}")
        name, scale = base, suffix
    if scale not in (None, *SCALES):
        raise unknown_name("scale", scale or "", SCALES)
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name] if scale in (None, "paper") else PROTOCOLS[name].at(scale)


def first_tasks(stream: StreamConfig, count: int) -> StreamConfig:
    """The first tasks of a stream, with the same classes.

    >>> first_tasks(StreamConfig(dataset="cifar100", tasks=10), 3).sizes
    (10, 10, 10)
    """
    classes = stream.classes or dataset_info(stream.dataset).classes
    if not (stream.sizes or classes):
        raise ConfigError(
            f"{stream.dataset} has any number of classes: choose the first ones with --set stream.classes"
        )
    sizes = tuple(stream.sizes or task_sizes(classes or 0, stream.tasks, stream.first))
    if count > len(sizes):
        raise ConfigError(f"--first-tasks {count}: the stream has {len(sizes)} tasks; choose fewer")
    return stream.with_changes(sizes=sizes[:count], classes=sum(sizes[:count]))
