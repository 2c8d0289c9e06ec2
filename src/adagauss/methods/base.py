"""A method is four parts and a name: the composition and the registry of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, model_validator

from adagauss.backbones import BackboneConfig
from adagauss.backbones.registry import backbone_info
from adagauss.core.calibration import Holdout
from adagauss.core.config import (
    Config,
    Layer,
    Part,
    Requirement,
    Resolved,
    check_requirements,
    import_parts,
    part_of,
    resolve,
)
from adagauss.data.augment import Augmentation
from adagauss.errors import ConfigError, unknown_name
from adagauss.parts.classifiers import Classifier
from adagauss.parts.drift import Drift
from adagauss.parts.memory import Memory
from adagauss.parts.representation import NoReparameterisation, Representation, Term
from adagauss.utils.registry import Registry, import_custom

COMPOSITION, USER = "method", "settings"
"""Names of the layers with the values of the composition and of the user."""


class Method(Config):
    """Representation, memory, drift and classifier, with the network and the augmentation they use."""

    backbone: BackboneConfig = Field(default_factory=BackboneConfig)
    augmentation: Augmentation = Field(default_factory=Augmentation)
    representation: Annotated[Representation, part_of("representation")]
    memory: Annotated[Memory, part_of("memory")]
    drift: Annotated[Drift, part_of("drift")]
    classifier: Annotated[Classifier, part_of("classifier")]
    evidence: Annotated[Holdout, part_of("evidence")] = Field(default_factory=Holdout)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Method:
        check_requirements(self.acting(), self.given())
        return self

    def acting(self) -> list[Part]:
        """The parts that act in later tasks: if these are not trained, the terms do not."""
        frozen = self.representation.later is None
        return [part for _, part in self.parts() if not (frozen and isinstance(part, Term))]

    @property
    def why_no_known_classes(self) -> str | None:
        """Why a task may not bring more images of a class that is known already; None: it may."""
        reasons = ((part, part.why_no_known_classes) for part in self.acting())
        return next((f"{part.role} {part.kind!r} {reason}" for part, reason in reasons if reason), None)

    def parts(self) -> Iterator[tuple[str, Part]]:
        """Every part that may learn something, with the name of its state."""
        yield "representation", self.representation
        for name, part in self.representation.subparts():
            yield f"representation/{name}", part
        yield "memory", self.memory
        yield "drift", self.drift
        yield "classifier", self.classifier
        yield "evidence", self.evidence

    @property
    def trains(self) -> bool:
        """Whether it trains a network at all."""
        return self.representation.first is not None

    @property
    def is_frozen(self) -> bool:
        """Whether features never change after the first task."""
        return Requirement.FROZEN_FEATURES in self.representation.provides | self.given()

    def given(self) -> frozenset[Requirement]:
        """What the network provides."""
        if self.backbone.features is not None:
            return frozenset()
        given = {Requirement.NON_NEGATIVE} if backbone_info(self.backbone.name).non_negative else set()
        every_weight_learns = isinstance(self.representation.reparameterisation, NoReparameterisation)
        if self.backbone.train_blocks == "none" and every_weight_learns:
            given.add(Requirement.FROZEN_FEATURES)
        return frozenset(given)


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
    """An upper bound: the runner gives it the images of all seen tasks at once."""
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of its authors for some datasets, keyed by the name of the dataset or a prefix of it."""
    fixed: tuple[str, ...] = ()
    """Settings that define the method: soft layers, of datasets or protocols, do not change them."""

    def preset_layers(self, preset: str | None) -> list[Layer]:
        """The settings of a preset, or of the default preset; no layers if the method has no presets."""
        chosen = preset or self.default_preset
        if chosen is None:
            return []
        if (settings := REMOVED_PRESETS.get(self.name, {}).get(chosen)) is not None:
            instead = f"give its settings with --set: {settings}" if settings else "leave the preset out"
            raise ConfigError(f"the preset {chosen!r} of {self.name} was removed in version 0.3; {instead}")
        if chosen not in self.presets:
            raise unknown_name(f"preset of {self.name}", chosen, self.presets)
        return [Layer(f"preset {chosen}", self.presets[chosen])]

    def authors_layer(self, dataset: str) -> Layer:
        """The settings of the authors for this dataset, beyond the composition."""
        own = [settings for name, settings in self.datasets.items() if dataset.startswith(name)]
        return Layer("authors", {key: value for settings in own for key, value in settings.items()})


MODULES = {
    "acil": "acil",
    "adagauss": "adagauss",
    "adagauss+": "adagauss",
    "adagauss-affine": "adagauss",
    "adagauss-linear": "adagauss",
    "adc": "lwf",
    "analytic": "analytic",
    "analytic-patches": "analytic",
    "analytic-pretrained": "analytic",
    "dpcr": "dpcr",
    "dsal": "acil",
    "efc": "efc",
    "efc++": "efc",
    "ewc": "ewc",
    "fecam": "fecam",
    "fetril": "fetril",
    "finetune": "baselines",
    "frozen": "baselines",
    "il2a": "il2a",
    "joint": "baselines",
    "ldc": "lwf",
    "lwf": "lwf",
    "pass": "pass_",
    "ranpac": "analytic",
    "sdc": "lwf",
    "ssre": "ssre",
}
"""The module of this package that defines each method, so that finding one imports no other."""

OLD_NAMES = {"exact": "analytic-patches", "exact-auto": "analytic", "exact-pretrained": "analytic-pretrained"}
"""Names of version 0.2.0 that are still accepted."""

REMOVED = {
    "adagauss-still": "AdaGauss+ with a second network of fixed patches; use adagauss+, or analytic for fixed features",
    "circle": "LDA on random reservoirs, reconstructed from an abstract; use analytic-patches",
}
"""Methods of version 0.2.0: what each was, and what to use now."""

_EWC = "representation.terms.ewc"
REMOVED_PRESETS = {
    "dpcr": {"signed": "backbone.features=64 classifier.gamma=0.1 classifier.relative=true"},
    "ewc": {
        "facil": f"{_EWC}.weight=5000 {_EWC}.gradients=batch {_EWC}.labels=predicted {_EWC}.over=seen",
        "pycil": f"{_EWC}.weight=1000 {_EWC}.gradients=batch {_EWC}.labels=true {_EWC}.over=seen "
        f"{_EWC}.old_share=null {_EWC}.limit=1e-4",
    },
    "analytic-patches": {"first-task": "backbone.options.dictionary_from=first_task"},
    "ldc": {"adam": "drift.kind=ldc_trained"},
    "lwf": {
        "facil": "",
        "pycil": "representation.train_old_heads=true representation.terms.distillation.weight=3",
    },
}
"""Presets of version 0.2.0 and the settings that take their place; an empty text: the method without a preset."""

_METHODS: Registry[MethodInfo] = Registry(
    "method", "adagauss.methods", {name: f"adagauss.methods.{module}" for name, module in MODULES.items()}
)


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
    fixed: tuple[str, ...] = (),
) -> Callable[[Callable[[], Method]], Callable[[], Method]]:
    """Register a composition, so that every command and every contract test uses it."""

    def register(build: Callable[[], Method]) -> Callable[[], Method]:
        info = MethodInfo(
            name, title, family, stores, paper, build, presets or {}, default_preset, joint, datasets or {}, fixed
        )
        _METHODS.register(name, info, by=build)
        return build

    return register


def methods() -> dict[str, MethodInfo]:
    """All registered methods by name."""
    return _METHODS.all()


def method_info(name: str) -> MethodInfo:
    """One registered method; an unknown name raises with the nearest known one.

    ``module:name`` is a method of another module, which is imported.
    """
    if name in REMOVED:
        raise ConfigError(f"the method {name!r} was removed in version 0.3: {REMOVED[name]}")
    import_custom([name])
    return _METHODS.find_custom(OLD_NAMES.get(name, name))


def stored_method_name(name: str) -> str:
    """The name of a method as files store it: today's name, with the module if it is not of this package.

    >>> stored_method_name("exact-auto")
    'analytic'
    """
    return _METHODS.stored_name(method_info(name).name)


def make_method(
    name: str,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    layers: Iterable[Layer] = (),
    epochs: int | None = None,
) -> Method:
    """A method with its settings resolved; see `resolve_method`.

    >>> make_method("adagauss", settings={"classifier.pooled_shrinkage": 0.5}).classifier.pooled_shrinkage
    0.5
    """
    return resolve_method(name, preset, settings, layers, epochs).config


def resolve_method(
    name: str,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    layers: Iterable[Layer] = (),
    epochs: int | None = None,
) -> Resolved[Method]:
    """A method and where each of its settings comes from: composition ← preset ← layers ← the user's settings.

    Args:
        name: a registered method, or ``module:name`` for one that another module registers.
        preset: one of its presets; None takes the default.
        settings: the user's settings by dotted key; an unknown key is an error.
        layers: layers between the preset and the user's settings, such as `adagauss.methods.traits.dataset_layers`.
        epochs: epochs of every training of a task unless ``settings`` set them, and half as many for an adapter, as in
            the paper. It is applied last, so that it also reaches parts that the user has exchanged.
    """
    info = method_info(name)
    import_parts(settings or {})
    fixed = dict.fromkeys(info.fixed)
    between = [layer if layer.strict else layer.without(fixed) for layer in layers]
    stack = [*info.preset_layers(preset), *between, Layer(USER, settings or {})]
    if epochs is not None:
        stack.append(_epochs_layer(epochs).without(settings or {}))
    return resolve(info.build(), stack, COMPOSITION)


def _epochs_layer(epochs: int) -> Layer:
    lengths = {
        "representation.first.epochs": epochs,
        "representation.later.epochs": epochs,
        "drift.recipe.epochs": max(1, epochs // 2),
    }
    return Layer("epochs", lengths, strict=False)
