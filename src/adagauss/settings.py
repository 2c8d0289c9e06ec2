"""Settings are layers of data, resolved once; each value keeps the layer it comes from.

A method starts from its composition, and each layer overrides those before it: a preset, a protocol, the user. Keys are
dotted (``drift.recipe.epochs``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from adagauss.config import Config, plain

AUTOMATIC = ("backbone.input_size",)
"""Settings whose None means 'default', not 'off'."""
KIND = "kind"

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Layer:
    """Settings from one source.

    An unknown key of a strict layer is an error. A soft layer is for methods it does not know: keys that a method does
    not have, or has turned off, are skipped.
    """

    name: str
    settings: Mapping[str, Any]
    strict: bool = True

    def without(self, settings: Mapping[str, Any]) -> Layer:
        """This layer without the keys that ``settings`` contain."""
        taken = {*settings, *flatten(settings)}
        return replace(self, settings={key: value for key, value in self.settings.items() if key not in taken})


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
        changes = layer.settings if layer.strict else existing(spec, layer.settings)
        if not changes:
            continue
        touched = {*changes, *_exchanged(spec, changes)}
        # Validation reports errors in a layer, and fills in the fields of a new part.
        spec = plain(model.of(override(spec, changes)))
        origins = {key: layer.name if _within(key, touched) else origins.get(key, layer.name) for key in flatten(spec)}
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
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    for dotted, value in sorted(changes.items(), key=lambda item: not item[0].endswith(f".{KIND}")):
        head, _, rest = dotted.partition(".")
        if not rest:
            result[head] = dict(value) if isinstance(value, Mapping) else value
            continue
        inner = result.get(head)
        inner = dict(inner) if isinstance(inner, Mapping) else {}
        if rest == KIND and inner.get(KIND) != value:
            inner = {}
        if rest == "name" and inner.get("name") != value:
            inner.pop("options", None)  # they belong to the network that stood there before
        result[head] = override(inner, {rest: value})
    return result


def existing(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Only the dotted changes whose key exists: the changes of a soft layer that apply to this method.

    What the method has turned off (None) stays off: a bottleneck width does not apply to a method without bottleneck.
    """
    known = {key for key, value in flatten(settings).items() if value is not None or key in AUTOMATIC}
    return {key: value for key, value in changes.items() if key in known}


def _exchanged(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> list[str]:
    """Keys at which the changes put a part of another kind."""
    before = flatten(spec)
    return [
        key.removesuffix(f".{KIND}")
        for key, value in changes.items()
        if key.endswith(f".{KIND}") and before.get(key) != value
    ]


def _within(key: str, places: Iterable[str]) -> bool:
    return any(key == place or key.startswith(f"{place}.") for place in places)
