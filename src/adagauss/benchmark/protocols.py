"""The paper's benchmarks by name, each also at a scale for two CPU cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from adagauss.data.stream import StreamConfig
from adagauss.errors import unknown_name

Settings = Mapping[str, Any]

SCRATCH: Settings = {
    "backbone.name": "resnet18",
    "backbone.features": 64,
}
PLAIN_CROPS: Settings = {"augmentation.policy": "none"}
"""Only CIFAR is trained with a random policy beside crops and flips, even in the published code."""
FINE_GRAINED: Settings = {
    **PLAIN_CROPS,
    "backbone.name": "resnet18",
    "backbone.features": 32,
    "representation.trunk_rate": 0.1,
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
    "classifier.buffer": 2048,
}
"""A thin network and short schedules: minutes instead of days, and numbers that compare only with each other."""
PRETRAINED_CPU: Settings = {
    **CPU,
    "backbone.name": "efficientnet_lite0",
    "backbone.train_blocks": "last:6",
    "representation.first.epochs": 15,
    "representation.first.batch_size": 64,
    "representation.later.epochs": 15,
    "representation.later.batch_size": 64,
    "drift.recipe.batch_size": 64,
}
"""Thirty images a class teach a thin network nothing: upper blocks of one that knows ImageNet (extra: pretrained)."""

CPU_CLASSES = {"tiny": 50, "cub": 100, "cars": 100}
"""How many classes are taught at the CPU scale, where it is not all of them."""


@dataclass(frozen=True)
class Protocol:
    """A stream of tasks with the hyperparameters its rows of the tables were made with."""

    name: str
    stream: StreamConfig
    settings: Settings
    """Wishes to any method; each takes those that it has."""
    preset_settings: Mapping[str, Settings] = field(default_factory=dict)
    """Further wishes under a preset of AdaGauss, such as the λ that the published code uses on this dataset."""
    scale: str = "paper"
    cpu_settings: Settings = field(default_factory=lambda: CPU)
    cpu_image_size: int = 32

    def wishes(self, preset: str | None, recipe: Settings | None = None) -> dict[str, Any]:
        """All settings the protocol asks for under a preset; a recipe for all methods goes before the preset's."""
        own = self.preset_settings.get(preset or "", {})
        return {**{key: value for key, value in own.items() if key not in (recipe or {})}, **self.settings}

    def at_cpu_scale(self) -> Protocol:
        """The same tasks for two CPU cores: a small network, fewer epochs, smaller image files, at most 100 classes."""
        classes = CPU_CLASSES.get(self.stream.dataset)
        size = self.cpu_image_size if self.stream.image_size else None
        return replace(
            self,
            name=f"{self.name}-cpu",
            stream=self.stream.model_copy(update={"classes": classes, "image_size": size}),
            settings={**self.settings, **self.cpu_settings},
            scale="cpu",
        )


def _make() -> dict[str, Protocol]:
    found: list[Protocol] = []

    def add(name: str, dataset: str, tasks: int, settings: Settings, **more: Any) -> None:
        first, size = more.pop("first", None), more.pop("size", None)
        stream = StreamConfig(dataset=dataset, tasks=tasks, first=first, image_size=size)
        found.append(Protocol(name, stream, settings, **more))

    for tasks in (10, 20):
        add(f"cifar100-{tasks}", "cifar100", tasks, SCRATCH)
        add(f"tiny-{tasks}", "tiny", tasks, {**SCRATCH, **PLAIN_CROPS})
        add(f"imagenet-subset-{tasks}", "imagenet-subset-seed1993", tasks, {**SCRATCH, **PLAIN_CROPS}, size=224)
    for tasks in (5, 10):
        # T counts the tasks after the first half, as in most papers that start warm.
        add(f"cifar100-half-{tasks}", "cifar100", tasks + 1, SCRATCH, first=50)
        photos = {**SCRATCH, **PLAIN_CROPS}
        add(f"imagenet-subset-half-{tasks}", "imagenet-subset-seed1993", tasks + 1, photos, first=50, size=224)
    for dataset, batch in (("cub", 128), ("aircraft", 256), ("cars", 256)):
        for tasks in (5, 10, 20):
            slow = dataset == "cub" and tasks == 20
            batched = ("representation.first", "representation.later", "drift.recipe")
            paper = {f"{stage}.batch_size": batch for stage in batched}
            reference = {
                **paper,
                "representation.expansion.kind": "none",
                "representation.terms.distillation.weight": 1.0 if slow else 0.3,
                "representation.later.learning_rate": 0.1,
                "drift.recipe.learning_rate": 0.1 if slow else 0.01,
            }
            add(
                f"{dataset}-{tasks}",
                dataset,
                tasks,
                FINE_GRAINED,
                preset_settings={"paper": paper, "reference": reference},
                size=224,
                cpu_settings=PRETRAINED_CPU,
                cpu_image_size=128,
            )
    return {protocol.name: protocol for one in found for protocol in (one, one.at_cpu_scale())}


PROTOCOLS = _make()


def protocol(name: str) -> Protocol:
    """A protocol by name; an unknown one raises with the nearest known one.

    >>> protocol("cifar100-10").stream.tasks
    10
    """
    if name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
