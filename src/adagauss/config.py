"""Configuration: every object with hyperparameters is a validated model, and its constructor is its configuration.

`Config` is immutable and forbids unknown keys. `Part` is a configured piece of a method (a loss term, a drift, a
classifier, ...). Parts of one role differ in their `kind` and are found by it, so that YAML files and ``--set
classifier.kind=nearest_mean`` can exchange them. Nothing here ever holds a tensor: what a part learns is in modules
that it returns (`adagauss.state`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from adagauss.errors import ConfigError, unknown_name
from adagauss.needs import Need
from adagauss.registry import Registry

if TYPE_CHECKING:
    from adagauss.state import Learned


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
            return cls.model_validate(dict(settings))
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

    @staticmethod
    def kinds(role: str) -> dict[str, type[Part]]:
        """All parts of a role by kind."""
        return Part._registry[role].all() if role in Part._registry else {}

    @staticmethod
    def build(role: str, spec: Mapping[str, Any], where: str | None = None) -> Part:
        """The part described by plain data, e.g. ``{"kind": "bayes", "log_det": False}``."""
        fields = dict(spec)
        kind = fields.pop("kind", None)
        if kind is None:
            raise ConfigError(f"{where or role}: this {role} does not exist here; add it with {where or role}.kind=...")
        return Part._registry[role].find(kind).of(fields, where=f"{where or role}.")

    def spec(self) -> dict[str, Any]:
        """Plain data from which `build` makes an equal part."""
        return {"kind": self.kind, **{name: _plain(getattr(self, name)) for name in type(self).model_fields}}

    @property
    def requires(self) -> frozenset[Need]:
        """What another part of the method must provide for this one to work."""
        return frozenset()

    @property
    def provides(self) -> frozenset[Need]:
        """What other parts may rely on if this one is used."""
        return frozenset()

    @property
    def against_known_classes(self) -> str | None:
        """Why a task may not bring more images of a class that is known already; None: it may."""
        return None

    def empty_state(self) -> Learned | None:
        """An empty module of the kind that this part returns after a task; None if it learns nothing."""
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return value.spec()
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def plain(config: Config) -> dict[str, Any]:
    """A configuration as JSON-ready data, parts with their kinds."""
    data = _plain(config)
    assert isinstance(data, dict)
    return data


def part_of(role: str, where: str | None = None) -> BeforeValidator:
    """Allow a field whose type is a part to be given as plain data: ``Annotated[Drift, part_of("drift")]``."""
    return BeforeValidator(lambda value: Part.build(role, value, where) if isinstance(value, Mapping) else value)


def _readable(error: ValidationError, model: type[BaseModel], where: str) -> ConfigError:
    """The first problem of a validation as one sentence."""
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
    # Our own validators raise whole sentences; pydantic puts the kind of the exception before them.
    reason = problem["msg"].removeprefix("Value error, ")
    return ConfigError(f"{where}{path}: {reason} (got {problem['input']!r})")
