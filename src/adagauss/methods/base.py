"""A method is four parts and a name; this is the composition and the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, model_validator

from adagauss.backbones import BackboneConfig
from adagauss.backbones.registry import backbone_info
from adagauss.classifiers import Classifier
from adagauss.config import Config, Part, existing, override, part_of, plain
from adagauss.data.augment import Augmentation
from adagauss.drift import Drift
from adagauss.errors import unknown_name
from adagauss.memory import Memory
from adagauss.needs import Need, check_needs
from adagauss.plugins import import_submodules
from adagauss.representation import Representation, Term


class Method(Config):
    """Representation, memory, drift and classifier, with the network and the augmentation they work on."""

    backbone: BackboneConfig = Field(default_factory=BackboneConfig)
    augmentation: Augmentation = Field(default_factory=Augmentation)
    representation: Annotated[Representation, part_of("representation")]
    memory: Annotated[Memory, part_of("memory")]
    drift: Annotated[Drift, part_of("drift")]
    classifier: Annotated[Classifier, part_of("classifier")]

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Method:
        # Where later tasks are not trained, what a term would need of them does not matter.
        frozen = self.representation.later is None
        acting = [part for _, part in self.parts() if not (frozen and isinstance(part, Term))]
        check_needs(acting, self.given())
        return self

    def parts(self) -> Iterator[tuple[str, Part]]:
        """Every part that may learn something, by the name that its state has."""
        yield "representation", self.representation
        for name, part in self.representation.subparts():
            yield f"representation/{name}", part
        yield "memory", self.memory
        yield "drift", self.drift
        yield "classifier", self.classifier

    def given(self) -> frozenset[Need]:
        """What the network provides."""
        rectified = self.backbone.features is None and backbone_info(self.backbone.name).non_negative
        still = self.backbone.train_blocks == "none" and self.backbone.features is None
        given = {Need.NON_NEGATIVE} if rectified else set()
        return frozenset(given | ({Need.STILL_FEATURES} if still else set()))


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


_METHODS: dict[str, MethodInfo] = {}


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
        _METHODS[name] = MethodInfo(
            name, title, family, stores, paper, build, presets or {}, default_preset, joint, datasets or {}
        )
        return build

    return register


def methods() -> dict[str, MethodInfo]:
    """All registered methods by name."""
    import_submodules("adagauss.methods")
    return dict(sorted(_METHODS.items()))


def method_info(name: str) -> MethodInfo:
    """One registered method; an unknown name raises with the nearest known one."""
    known = methods()
    if name not in known:
        raise unknown_name("method", name, known)
    return known[name]


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
