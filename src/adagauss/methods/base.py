"""A method is four parts and a name; this is the composition and the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, model_validator

from adagauss.backbones import BackboneConfig
from adagauss.classifiers import Classifier
from adagauss.config import Config, existing, override, part_of, plain
from adagauss.data.augment import Augmentation
from adagauss.drift import Drift
from adagauss.errors import ConfigError, unknown_name
from adagauss.memory import Memory
from adagauss.registry import Registry
from adagauss.representation import Representation


class Method(Config):
    """Representation, memory, drift and classifier, with the network and the augmentation they work on."""

    backbone: BackboneConfig = Field(default_factory=BackboneConfig)
    augmentation: Augmentation = Field(default_factory=Augmentation)
    representation: Annotated[Representation, part_of("representation")]
    memory: Annotated[Memory, part_of("memory")]
    drift: Annotated[Drift, part_of("drift")]
    classifier: Annotated[Classifier, part_of("classifier")]

    @model_validator(mode="after")
    def _memory_serves_classifier(self) -> Method:
        kept = getattr(self.memory, "covariance", "none")
        if self.classifier.needs_covariances and kept == "none":
            raise ConfigError(
                f"the classifier {self.classifier.kind!r} needs covariances, but the memory keeps none: "
                "set memory.covariance=full, or another classifier.kind"
            )
        return self


@dataclass(frozen=True)
class MethodInfo:
    """A registered method: what `adagauss methods` shows, and the function that composes it."""

    name: str
    title: str
    family: str
    stores: str
    paper: str
    build: Callable[[], Method]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    default_preset: str | None = None
    joint: bool = False
    """An upper bound: the benchmark runner gives it the images of all tasks at once."""
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings its authors use on some datasets, by the name of the dataset or how the name begins."""

    def settings_for(self, dataset: str) -> dict[str, Any]:
        """What the authors set on this dataset, beyond the composition."""
        return {
            key: value for name, own in self.datasets.items() if dataset.startswith(name) for key, value in own.items()
        }


_METHODS: Registry[MethodInfo] = Registry("method", "adagauss.methods")


def register_method(
    name: str,
    *,
    title: str,
    family: str,
    stores: str,
    paper: str,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    default_preset: str | None = None,
    joint: bool = False,
    datasets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Callable[[], Method]], Callable[[], Method]]:
    """Put a composition into the registry: every command, and every contract test, then knows it."""

    def register(build: Callable[[], Method]) -> Callable[[], Method]:
        info = MethodInfo(
            name, title, family, stores, paper, build, presets or {}, default_preset, joint, datasets or {}
        )
        _METHODS.register(name, info, by=build)
        return build

    return register


def methods() -> dict[str, MethodInfo]:
    """All registered methods by name."""
    return _METHODS.all()


def method_info(name: str) -> MethodInfo:
    """One registered method; an unknown name raises with the nearest known one."""
    return _METHODS.find(name)


def make_method(
    name: str,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    wishes: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Method:
    """A method with its settings resolved: composition ← preset ← recipe ← a dataset's wishes ← the user's settings.

    Args:
        name: a registered method.
        preset: one of its presets; None takes its default one.
        settings: dotted keys; an unknown one is an error.
        wishes: dotted keys that are passed over where the method has no such setting, or has turned it off.
        recipe: dotted keys that come before the wishes; an unknown one is an error.

    >>> make_method("adagauss", settings={"classifier.tied": 0.5}).classifier.tied
    0.5
    """
    info = method_info(name)
    chosen = preset or info.default_preset
    spec = plain(info.build())
    if chosen is not None:
        if chosen not in info.presets:
            raise unknown_name(f"preset of {name}", chosen, info.presets)
        spec = override(spec, info.presets[chosen])
    spec = override(spec, recipe or {})
    spec = override(spec, existing(spec, wishes or {}))
    return Method.of(override(spec, settings or {}))


def with_epochs(settings: Mapping[str, Any], epochs: int | None, method: Method) -> dict[str, Any]:
    """Settings that make every training of a task ``epochs`` long, and an adapter half of it, as in the paper."""
    if epochs is None:
        return dict(settings)
    spec = plain(method)
    shorter = {
        "representation.first.epochs": epochs,
        "representation.later.epochs": epochs,
        "drift.recipe.epochs": max(1, epochs // 2),
    }
    return {**existing(spec, shorter), **settings}
