"""A method is four parts and a name: the composition, the registry of methods, and their settings per dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    old_names,
    part_of,
    refuse_removed,
    resolve,
)
from adagauss.data.augment import Augmentation
from adagauss.data.dataset import Trait, dataset_info
from adagauss.errors import unknown_name
from adagauss.parts.classifiers import Classifier, LearnedHead
from adagauss.parts.drift import Drift, NoDrift
from adagauss.parts.memory import Memory
from adagauss.parts.representation import TERMS, Representation, Term
from adagauss.utils.registry import Registry, import_custom

COMPOSITION, USER = "method", "settings"
"""Names of the layers with the values of the composition and of the user."""


class Method(Config):
    """Representation, memory, drift and classifier, with the network and the augmentation they use.

    By default nothing is stored per class, and the trained outputs are the prediction.
    """

    backbone: BackboneConfig = Field(default_factory=BackboneConfig)
    augmentation: Augmentation = Field(default_factory=Augmentation)
    representation: Annotated[Representation, part_of("representation")]
    memory: Annotated[Memory, part_of("memory")] = Field(default_factory=Memory)
    drift: Annotated[Drift, part_of("drift")] = Field(default_factory=NoDrift)
    classifier: Annotated[Classifier, part_of("classifier")] = Field(default_factory=LearnedHead)
    evidence: Annotated[Holdout, part_of("evidence")] = Field(default_factory=Holdout)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Method:
        check_requirements(self.acting(), self.given())
        return self

    def acting(self) -> list[Part]:
        """The parts that act in later tasks: if these are not trained, the terms do not."""
        frozen = self.representation.later is None
        return [part for part in self.parts().values() if not (frozen and isinstance(part, Term))]

    @property
    def why_no_known_classes(self) -> str | None:
        """Why a task may not bring more images of a class that is known already; None: it may."""
        need = Requirement.NEW_CLASSES
        parts = [part for part in self.acting() if need in part.requires]
        return f"{parts[0].role} {parts[0].kind!r} needs {need.value[0]}" if parts else None

    def parts(self) -> dict[str, Part]:
        """Every part, by the name of its state."""
        trained = self.representation
        return {
            "representation": trained,
            "representation/label_augmentation": trained.label_augmentation,
            "representation/reparameterisation": trained.reparameterisation,
            **{TERMS + name: term for name, term in trained.terms.items()},
            "memory": self.memory,
            "drift": self.drift,
            "classifier": self.classifier,
            "evidence": self.evidence,
        }

    @property
    def trains(self) -> bool:
        """Whether it trains a network."""
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
        if self.backbone.train_blocks == "none" and self.representation.reparameterisation.kind == "none":
            given.add(Requirement.FROZEN_FEATURES)
        return frozenset(given)


@dataclass(frozen=True)
class MethodInfo:
    """A registered method: what `adagauss list methods` shows, and the function that composes it."""

    name: str
    title: str
    family: str
    stores: str
    paper: str
    build: Callable[[], Method]
    recipe: str = "ours"
    """Whose training settings it has: those of its authors, of a toolbox (PyCIL, FACIL) or ours."""
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
        refuse_removed("preset", f"{self.name} {chosen}")
        if chosen not in self.presets:
            raise unknown_name(f"preset of {self.name}", chosen, self.presets)
        return [Layer(f"preset {chosen}", self.presets[chosen])]

    def authors_layer(self, dataset: str) -> Layer:
        """The settings of the authors for this dataset, beyond the composition."""
        own = [settings for name, settings in self.datasets.items() if dataset.startswith(name)]
        return Layer("authors", {key: value for settings in own for key, value in settings.items()})


MODULES = {
    "acil": ("acil", "dsal"),
    "adagauss": ("adagauss", "adagauss+", "adagauss-affine", "adagauss-linear"),
    "analytic": ("analytic", "analytic-patches", "analytic-pretrained", "ranpac"),
    "baselines": ("finetune", "frozen", "joint"),
    "bicyc": ("bicyc",),
    "dpcr": ("dpcr",),
    "efc": ("efc", "efc++"),
    "ewc": ("ewc",),
    "fecam": ("fecam",),
    "fetril": ("fetril",),
    "lwf": ("adc", "ldc", "lwf", "sdc"),
    "pass_": ("il2a", "pass"),
    "ssre": ("ssre",),
}
"""The methods of each module of this package, so that finding one imports no other."""

_METHODS: Registry[MethodInfo] = Registry(
    "method", "adagauss.methods", {name: f"adagauss.methods.{module}" for module in MODULES for name in MODULES[module]}
)


def register_method(name: str, **facts: Any) -> Callable[[Callable[[], Method]], Callable[[], Method]]:
    """Register a composition, so that every command and every contract test uses it.

    Args:
        name: of the method.
        **facts: other fields of `MethodInfo`, except ``build``, which is the decorated function.
    """

    def register(build: Callable[[], Method]) -> Callable[[], Method]:
        _METHODS.register(name, MethodInfo(name=name, build=build, **facts), by=build)
        return build

    return register


def methods() -> dict[str, MethodInfo]:
    """All registered methods by name."""
    return _METHODS.all()


def method_info(name: str) -> MethodInfo:
    """One registered method; an unknown name raises with the nearest known one.

    ``module:name`` or ``file.py:name`` is a method of another module, which is imported.
    """
    refuse_removed("method", name)
    import_custom([name])
    return _METHODS.find(old_names()["methods"].get(name, name))


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
        name: a registered method, or ``module:name`` (``file.py:name``) for one that another module registers.
        preset: one of its presets; None takes the default.
        settings: the user's settings by dotted key; an unknown key is an error.
        layers: layers between the preset and the user's settings, such as `dataset_layers`.
        epochs: epochs of every training of a task unless ``settings`` set them, and half as many for an adapter, as in
            the paper. It is applied last, so that it also reaches parts that the user has exchanged.
    """
    info = method_info(name)
    import_parts(settings or {})
    fixed = dict.fromkeys(info.fixed)
    between = [layer if layer.strict else layer.without(fixed) for layer in layers]
    stack = [*info.preset_layers(preset), *between, Layer(USER, settings or {})]
    if epochs is not None:
        lengths = {
            "representation.first.epochs": epochs,
            "representation.later.epochs": epochs,
            "drift.recipe.epochs": max(1, epochs // 2),
        }
        stack.append(Layer("epochs", lengths, strict=False).without(settings or {}))
    return resolve(info.build(), stack, COMPOSITION)


TRAIT_SETTINGS: Mapping[Trait, Mapping[str, Any]] = {
    # Augmentation policies are made for colour photographs.
    Trait.GREY: {"augmentation.policy": "none"},
    Trait.MIRRORING_HARMS: {
        "augmentation.flip": False,
        "memory.flips": False,
        "backbone.mirror": False,
    },
    Trait.PHOTOGRAPHS: {"augmentation.resized_crop": True, "augmentation.crop_padding": 0},
    # A crop of a few pixels shows nothing; and few random features are enough, in a fraction of the time.
    Trait.TINY_IMAGES: {
        "augmentation.resized_crop": False,
        "classifier.expansion_size": 512,
    },
    # A task has about 250 images: use many short epochs, and enough batches for the adapter.
    Trait.FEW_IMAGES: {
        "representation.first.epochs": 20,
        "representation.first.batch_size": 32,
        "representation.later.epochs": 20,
        "representation.later.batch_size": 32,
        "drift.recipe.epochs": 100,
        "drift.recipe.batch_size": 32,
        "drift.recipe.learning_rate": 0.1,
    },
}
"""What the traits of a dataset mean for any method: datasets know nothing about methods."""


def trait_layers(traits: Iterable[Trait]) -> list[Layer]:
    """Settings of the traits of a dataset for any method."""
    return [Layer(str(trait), TRAIT_SETTINGS[trait], strict=False) for trait in traits]


def dataset_layers(name: str) -> list[Layer]:
    """Settings of a dataset for any method: those of its traits, then its own settings of images and network.

    >>> [layer.name for layer in dataset_layers("mnist")]
    ['grey images', 'mirroring harms', 'dataset mnist']
    """
    info = dataset_info(name)
    short = name.partition(":")[0]
    return [*trait_layers(info.traits), Layer(f"dataset {short}", info.settings, strict=False)]
