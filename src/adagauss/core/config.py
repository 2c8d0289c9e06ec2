"""Configuration: validated models, parts that are found by their kind, and layers of settings.

Parts of one role (a drift, a classifier, a loss term) differ in their `kind`, so that YAML files and ``--set
classifier.kind=nearest_mean`` can exchange them. A part holds no tensor: it returns its learned state as a module
(`adagauss.core.state`).

A method starts from its composition. Layers override it in order: a preset, a protocol, the user. Keys are dotted
(``drift.recipe.epochs``), and each value keeps the name of its layer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_serializer

from adagauss.errors import ConfigError, unknown_name
from adagauss.utils.registry import Registry, import_custom

if TYPE_CHECKING:
    from adagauss.core.state import State


@cache
def old_names() -> dict[str, Any]:
    """Names of version 0.2.0 and their present ones, and what replaces the features that were removed since."""
    path = resources.files("adagauss.core").joinpath("old_names.yaml")
    names: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return names


def refuse_removed(sort: str, name: str) -> None:
    """Raise if version 0.3 removed this; the error says what takes its place."""
    if (instead := old_names()["removed"][sort].get(name)) is not None:
        raise ConfigError(f"the {sort} {name!r} was removed in version 0.3: {instead}")


def current_key(key: str) -> str:
    """The present name of a setting key.

    >>> current_key("classifier.tied"), current_key("classifier.log_det")
    ('classifier.pooled_shrinkage', 'classifier.log_det')
    """
    renamed: dict[str, str] = old_names()["settings"]
    for old, new in renamed.items():
        if key == old or key.startswith(f"{old}."):
            return new + key[len(old) :]
    return key


def current_settings(settings: Mapping[str, Any], role: str = "", kind: str = "") -> dict[str, Any]:
    """The settings of a part or of the backbone under their present names, without removed ones.

    >>> current_settings({"fallback": False, "least_steps": 5}, "drift", "adapter")
    {'min_steps': 5}
    """
    prefix = f"{role}." if role else ""
    removed_settings, current = old_names()["removed_settings"], {}
    for name, value in settings.items():
        removed = f"{prefix}{kind}.{name}" if kind else f"{prefix}{name}"
        if removed not in removed_settings:
            current[current_key(f"{prefix}{name}").removeprefix(prefix)] = value
            continue
        accepted, instead = removed_settings[removed]
        if accepted != "any" and value != accepted:
            raise ConfigError(f"the setting {prefix}{name} was removed in version 0.3: {instead}")
    return current


class Requirement(Enum):
    """Something that one part of a method needs and another provides: its description, and the setting to change."""

    MEANS = ("the mean of each class", "set memory.kind=means or memory.kind=gaussians")
    COVARIANCES = ("the covariance of each class", "set memory.kind=gaussians")
    KEPT_HEADS = (
        "trained outputs of every task",
        "set representation.heads=keep (and train later tasks: representation.later must not be null)",
    )
    NEW_CLASSES = (
        "one trained output for each class, and a class that comes again would get a second one",
        "use a method that predicts from class statistics, such as analytic or adagauss+",
    )
    LINEAR_HEAD = ("linear outputs", "set representation.head=linear")
    FEATURE_MATRIX = (
        "the empirical feature matrix",
        "add the term with representation.terms.feature_matrix.kind=feature_matrix",
    )
    TRAINED_ADAPTER = (
        "an adapter that is trained with the network",
        "add the term with representation.terms.distillation.kind=cycle_distillation",
    )
    NON_NEGATIVE = (
        "features that are never negative",
        "use a network that ends in a rectifier, without a linear bottleneck (backbone.name=resnet18, "
        "backbone.features=null), or switch the transform off (memory.tukey=null, classifier.tukey=null)",
    )
    FROZEN_FEATURES = (
        "features that are fixed after the first task",
        "set representation.later=null, which freezes the network",
    )


KIND = "kind"
TIMM = "timm:"
"""Start of the names of backbones that are models of timm."""


class Config(BaseModel):
    """An immutable, validated set of hyperparameters; an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def __hash__(self) -> int:
        return hash(json.dumps(plain(self), sort_keys=True))

    def with_changes(self, **fields: Any) -> Self:
        """A validated copy with changed values in some fields."""
        return type(self)(**{**dict(self), **fields})

    @classmethod
    def of(cls, settings: Mapping[str, Any], where: str = "") -> Self:
        """Build from plain data, with readable errors.

        Args:
            settings: field values, nested mappings for nested models.
            where: dotted path put before the field names in messages.
        """
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{where.rstrip('.') or cls.__name__} needs names and values, not {settings!r:.60}")
        try:
            return cls.model_validate(current_settings(settings, getattr(cls, "role", ""), getattr(cls, "kind", "")))
        except ValidationError as error:
            raise _readable(error, cls, where) from None


class Part(Config):
    """A configured piece of a method, found by ``role`` and ``kind``.

    A subclass that sets ``kind`` is registered when it is defined. A part that learns something from a task returns it
    as a module; `empty_state` makes an empty module that a saved state can be loaded into.

    >>> class Identity(Part):
    ...     role = "example"
    ...     kind = "identity"
    >>> Part.build("example", {"kind": "identity"})
    Identity()
    """

    role: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    _registry: ClassVar[dict[str, Registry[type[Part]]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "kind" in cls.__dict__ and cls.kind:
            Part._registry.setdefault(cls.role, Registry(cls.role, "adagauss.methods")).register(cls.kind, cls, by=cls)

    @model_serializer(mode="wrap")
    def _with_kind(self, fields: Callable[[Part], dict[str, Any]]) -> dict[str, Any]:
        return {KIND: Part._registry[self.role].stored_name(self.kind), **fields(self)}

    @staticmethod
    def kinds(role: str) -> dict[str, type[Part]]:
        """All parts of a role by kind."""
        return Part._registry[role].all() if role in Part._registry else {}

    @staticmethod
    def build(role: str, spec: Mapping[str, Any], where: str | None = None) -> Part:
        """The part described by plain data, e.g. ``{"kind": "bayes", "log_det": False}``."""
        fields = dict(spec)
        if (kind := fields.pop(KIND, None)) is None:
            raise ConfigError(f"{where or role}: this {role} does not exist here; add it with {where or role}.kind=...")
        kind = old_names()["kinds"].get(f"{role}.{kind}", kind)
        return Part._registry[role].find(kind).of(fields, where=f"{where or role}.")

    @property
    def requires(self) -> frozenset[Requirement]:
        """What another part of the method must provide for this one to work."""
        return frozenset()

    @property
    def provides(self) -> frozenset[Requirement]:
        """What other parts may rely on if this one is used."""
        return frozenset()

    def empty_state(self) -> State | None:
        """An empty module of the kind that this part returns after a task; None if it learns nothing."""
        return None


def check_requirements(parts: Iterable[Part], given: frozenset[Requirement] = frozenset()) -> None:
    """Refuse parts with requirements that none of them provides; ``given`` is what the network provides."""
    parts = list(parts)
    # Whether a class is new is known only when a task is learned.
    provided = given.union({Requirement.NEW_CLASSES}, *(part.provides for part in parts))
    for part in parts:
        for need in sorted(part.requires - provided, key=lambda need: need.name):
            what, remedy = need.value
            raise ConfigError(f"{part.role} {part.kind!r} needs {what}, and nothing provides it: {remedy}")


def plain(config: BaseModel) -> dict[str, Any]:
    """A configuration as JSON-ready data, from which `Config.of` or `Part.build` makes an equal one.

    Parts have their kinds; the kind of a custom part names its module.
    """
    return config.model_dump(mode="json", serialize_as_any=True)


def import_parts(data: Mapping[str, Any]) -> None:
    """Import the modules of the custom parts and backbone that stored or given settings name (``module:name``)."""
    named = {key: value for key, value in flatten(data).items() if key.rpartition(".")[2] == KIND}
    backbone = flatten(data).get("backbone.name")
    import_custom([*named.values(), None if str(backbone).startswith(TIMM) else backbone])


def part_of(role: str, where: str | None = None) -> BeforeValidator:
    """Allow a field whose type is a part to be given as plain data: ``Annotated[Drift, part_of("drift")]``."""
    return BeforeValidator(lambda value: Part.build(role, value, where) if isinstance(value, Mapping) else value)


def _readable(error: ValidationError, model: type[BaseModel], where: str) -> ConfigError:
    """The first problem of a validation as a `ConfigError`."""
    problem = error.errors()[0]
    path = ".".join(str(step) for step in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *parents, _ = problem["loc"]
        for step in parents:
            field = model.model_fields.get(str(step))
            # A field may be a model or, like the recipe of later tasks, a model or None.
            for candidate in (field.annotation, *get_args(field.annotation)) if field else ():
                if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                    model = candidate
        return unknown_name(
            "setting", where + path, [where + ".".join(map(str, [*parents, known])) for known in model.model_fields]
        )
    # Pydantic prefixes the messages of our validators.
    reason = problem["msg"].removeprefix("Value error, ")
    return ConfigError(f"{where}{path}: {reason} (got {problem['input']!r})")


AUTOMATIC = ("backbone.input_size",)
"""Settings whose None means 'default', not 'off'."""

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Layer:
    """Settings from one source; an unknown key is an error, or is skipped if the layer is not ``strict``."""

    name: str
    settings: Mapping[str, Any]
    strict: bool = True

    def without(self, settings: Mapping[str, Any]) -> Layer:
        """This layer without the keys that ``settings`` contain."""
        taken = {current_key(key) for key in (*settings, *flatten(settings))}
        kept = {key: value for key, value in self.settings.items() if current_key(key) not in taken}
        return replace(self, settings=kept)


@dataclass(frozen=True)
class Resolved(Generic[C]):
    """A configuration, and the name of the layer that each value comes from, by dotted key."""

    config: C
    origins: Mapping[str, str]


def resolve(start: C, layers: Iterable[Layer], origin: str) -> Resolved[C]:
    """Apply layers to a configuration.

    Exchanging a part (``drift.kind``) drops the fields of the old part; the defaults of the new one are attributed to
    the layer that exchanged it.

    Args:
        start: the configuration before any layer.
        layers: from the weakest to the strongest.
        origin: name of the origin of the values in ``start``.
    """
    model = type(start)
    spec = plain(start)
    origins = dict.fromkeys(flatten(spec), origin)
    for layer in layers:
        settings = {current_key(key): value for key, value in layer.settings.items()}
        changes = settings if layer.strict else existing(spec, settings)
        if not changes:
            continue
        before = flatten(spec)
        exchanged = (key for key, value in changes.items() if key.endswith(f".{KIND}") and before.get(key) != value)
        touched = (*changes, *(key.removesuffix(f".{KIND}") for key in exchanged))
        # Validation reports errors in a layer, and fills in the fields of a new part.
        spec = plain(model.of(override(spec, changes)))
        origins = {
            key: layer.name
            if any(key == place or key.startswith(f"{place}.") for place in touched)
            else origins.get(key, layer.name)
            for key in flatten(spec)
        }
    return Resolved(model.of(spec), origins)


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted keys: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def override(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with dotted changes applied; keys that do not exist are left to validation.

    Exchanging a part (``"drift.kind"``) drops the fields of the old part.
    """
    result = copy.deepcopy(dict(settings))
    for dotted, value in sorted(changes.items(), key=lambda item: not item[0].endswith(f".{KIND}")):
        *path, last = dotted.split(".")
        inner = result
        for step in path:
            if not isinstance(inner.get(step), dict):
                inner[step] = {}
            inner = inner[step]
        if path and last == KIND and inner.get(KIND) != value:
            inner.clear()
        if path and last == "name" and inner.get("name") != value:
            inner.pop("options", None)  # of the previous network
        inner[last] = dict(value) if isinstance(value, Mapping) else value
    return result


def existing(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted changes without keys that the method does not have, or that it has switched off with None."""
    known = {key for key, value in flatten(settings).items() if value is not None or key in AUTOMATIC}
    return {key: value for key, value in changes.items() if key in known}
