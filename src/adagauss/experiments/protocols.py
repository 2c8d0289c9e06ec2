"""Protocols by name and scale: the paper's benchmarks; reduced for a CPU; with few classes per task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from adagauss.backbones.registry import backbone_info
from adagauss.core.config import Layer
from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError, unknown_name
from adagauss.methods import Method

Settings = Mapping[str, Any]

SCRATCH: Settings = {
    "backbone.name": "resnet18",
    "backbone.features": 64,
}
PLAIN_CROPS: Settings = {"augmentation.policy": "none", "augmentation.brightness": 0.0}
"""Only CIFAR is trained with more than crops and flips, also in the published code."""
FINE_GRAINED: Settings = {
    **PLAIN_CROPS,
    "backbone.name": "resnet18",
    "backbone.features": 32,
}
"""ImageNet-pretrained networks; give the weight file with ``--set backbone.weights=FILE``."""

CPU: Settings = {
    "backbone.name": "resnet_thin",
    "backbone.features": 32,
    "representation.first.epochs": 8,
    "representation.first.batch_size": 128,
    "representation.first.schedule": "one_cycle",
    "representation.later.epochs": 4,
    "representation.later.batch_size": 128,
    "representation.later.schedule": "one_cycle",
    "drift.recipe.epochs": 40,
    "drift.recipe.batch_size": 128,
    "drift.views": 2,
    "classifier.expansion_size": 2048,
}
"""A thin network and short schedules: minutes instead of days, and numbers that are comparable only with each other."""
CPU_PHOTO = 128
"""Side of photographs at the CPU scale. They are not enlarged to the 224 pixels that the weights were trained at."""
PRETRAINED_CPU: Settings = {
    **CPU,
    "backbone.name": "efficientnet_lite0",
    "backbone.input_size": CPU_PHOTO,
    "backbone.train_blocks": "last:6",
    "representation.first.epochs": 15,
    "representation.first.batch_size": 64,
    "representation.later.epochs": 15,
    "representation.later.batch_size": 64,
    "drift.recipe.batch_size": 64,
}
"""Thirty images per class are too few for a thin network: train the last blocks of a pretrained one."""

FEW_CLASSES = 2
"""Classes of a task in the ``-few`` protocols."""
FEW: Settings = {
    **CPU,
    "representation.first.epochs": 10,
    "representation.first.batch_size": 64,
    "representation.later.epochs": 10,
    "representation.later.batch_size": 64,
    "classifier.expansion_size": 1024,  # 16 times the features of the network, as 8192 are of ResNet-18's
}
"""The time of the CPU scale for fewer classes: every task is trained longer."""
FEW_PRESETS: Mapping[str, Settings] = {"reference": {"representation.terms.distillation.weight": 2.0}}
"""The λ = 10 of the published code is for 200 epochs: it leaves a network that learns for ten almost where it was."""

PER_RUN = "per-run"
"""The published code has a fixed class order for CIFAR-100 and ImageNet-Subset and shuffles the others by the seed."""

CPU_CLASSES = {"tiny": 50, "cub": 100, "cars": 100}
"""Number of classes at the CPU scale, for datasets where not all are used."""


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
    cpu_settings: Settings = field(default_factory=lambda: CPU)
    cpu_image_size: int = 32
    needs_weights: bool = False
    """Whether the network starts from a weight file of the user."""

    def is_papers(self, settings: Settings) -> bool:
        """Whether it is still the paper's protocol with these settings of the user.

        A protocol with pretrained weights needs a weight file; which file it is cannot be checked.
        """
        from_file = settings.get("backbone.weights") not in (None, "random")
        return settings.keys() <= {"backbone.weights"} and from_file == self.needs_weights

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
        return [own.without(recipe or {}), Layer(f"protocol {self.name}", self.settings, strict=False)]

    def at_cpu_scale(self) -> Protocol:
        """The same tasks for two CPU cores: a small network, fewer epochs, smaller image files, at most 100 classes."""
        classes = CPU_CLASSES.get(self.stream.dataset)
        first = classes // 2 if classes and self.stream.first else self.stream.first
        size = self.cpu_image_size if self.stream.image_size else None
        return replace(
            self,
            name=f"{self.name}-cpu",
            stream=self.stream.model_copy(update={"classes": classes, "first": first, "image_size": size}),
            settings={**self.settings, **self.cpu_settings},
            scale="cpu",
            needs_weights=False,
        )

    def with_few_classes(self) -> Protocol:
        """As many tasks for two CPU cores, but of few classes each; half of all classes first, if there is such a task.

        Image files are as small as those of CIFAR-100, which the thin network was made for.
        """
        later = self.stream.tasks - 1 if self.stream.first else self.stream.tasks
        first = later * FEW_CLASSES if self.stream.first else None
        from_files = self.stream.dataset != "cifar100"
        update = {
            "classes": later * FEW_CLASSES + (first or 0),
            "first": first,
            "image_size": self.cpu_image_size if from_files else None,
        }
        return replace(
            self,
            name=f"{self.name}-few",
            stream=self.stream.model_copy(update=update),
            settings={**self.settings, **FEW},
            preset_settings=FEW_PRESETS,
            scale="cpu",
        )


def _fine_grained(dataset: str, batch: int, slow: bool) -> dict[str, Any]:
    """Settings that the three fine-grained datasets share."""
    stages = ("representation.first", "representation.later", "drift.recipe")
    paper = {f"{stage}.batch_size": batch for stage in stages}
    reference = {
        **paper,
        "representation.label_augmentation.kind": "none",
        "representation.terms.distillation.weight": 1.0 if slow else 0.3,
        "representation.later.learning_rate": 0.1,
        "drift.recipe.learning_rate": 0.1 if slow else 0.01,
    }
    return {
        "dataset": dataset,
        "class_order": PER_RUN,
        "settings": FINE_GRAINED,
        "preset_settings": {"paper": paper, "reference": reference},
        "image_size": 224,
        "cpu_settings": PRETRAINED_CPU,
        "cpu_image_size": CPU_PHOTO,
        "needs_weights": True,
    }


def _make() -> dict[str, Protocol]:
    found: list[Protocol] = []

    def add(prefix: str, dataset: str, tasks: int, half: int | None = None, **more: Any) -> None:
        # T counts the tasks after the first half of the classes, as in most papers with such a first task.
        name = f"{prefix}-half-{tasks}" if half else f"{prefix}-{tasks}"
        shape = {key: more.pop(key, None) for key in ("class_order", "image_size")}
        stream = StreamConfig(dataset=dataset, tasks=tasks + 1 if half else tasks, first=half, **shape)
        found.append(Protocol(name, stream, **more))

    photos: Settings = {**SCRATCH, **PLAIN_CROPS}
    scratch: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("cifar100", 100, {"dataset": "cifar100", "settings": SCRATCH}),
        ("tiny", 200, {"dataset": "tiny", "settings": photos, "class_order": PER_RUN}),
        ("imagenet-subset", 100, {"dataset": "imagenet-subset-seed1993", "settings": photos, "image_size": 224}),
    )
    for prefix, classes, details in scratch:
        for tasks in (10, 20):
            add(prefix, tasks=tasks, **details)
        for tasks in (5, 10):
            add(prefix, tasks=tasks, half=classes // 2, **details)
    for prefix, classes, batch in (("cub", 200, 128), ("aircraft", 100, 256), ("cars", 196, 256)):
        for tasks in (5, 10, 20):
            add(prefix, tasks=tasks, **_fine_grained(prefix, batch, slow=prefix == "cub" and tasks == 20))
        for tasks in (5, 10):
            add(prefix, tasks=tasks, half=classes // 2, **_fine_grained(prefix, batch, slow=False))
    return {one.name: one for one in found}


PROTOCOLS = _make()


SCALES = ("paper", "cpu", "few")


def protocol(name: str, scale: str | None = None) -> Protocol:
    """A protocol by name and scale; the names ``NAME-cpu`` and ``NAME-few`` include the scale.

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
    chosen = PROTOCOLS[name]
    if scale == "cpu":
        return chosen.at_cpu_scale()
    if scale == "few":
        if chosen.needs_weights:
            raise ConfigError(f"{name} starts from pretrained weights and has no scale few; use --scale cpu")
        return chosen.with_few_classes()
    return chosen
