"""Run folders by configuration, each with a short label: its method, and the settings in which it differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adagauss.analysis.studies.variants import DISTILLATIONS, NO_DISTILLATION
from adagauss.core.config import KIND, flatten, plain
from adagauss.errors import CheckpointError
from adagauss.experiments.config import RunConfig
from adagauss.experiments.run import RunFolder, stored_config

TERMS = "representation.terms."
FOLLOWS = {f"{TERMS}distillation": ("representation.heads",), f"{TERMS}anti_collapse": ("drift.anti_collapse",)}
"""Settings that go with others: they are named only if those do not differ."""
MOST_NAMED = 3
UNSET = object()


def grouped(paths: Sequence[RunFolder]) -> dict[str, list[RunFolder]]:
    """Runs of equal configurations but for the seed together, in the order given."""
    by_digest: dict[str, list[RunFolder]] = {}
    configs: dict[str, RunConfig] = {}
    for folder in paths:
        if not folder.exists():
            raise CheckpointError(f"{folder.path} is not a run folder: it has no config.yaml")
        config = stored_config(folder)
        by_digest.setdefault(config.digest(), []).append(folder)
        configs.setdefault(config.digest(), config)
    names = labels(configs)
    return {names[digest]: folders for digest, folders in by_digest.items()}


def labels(configs: Mapping[str, RunConfig]) -> dict[str, str]:
    """A label for each configuration: the method's name and, among those of one method, what differs."""
    found: dict[str, str] = {}
    for method in dict.fromkeys(config.method_name for config in configs.values()):
        own = {digest: config for digest, config in configs.items() if config.method_name == method}
        settings = {digest: settings_of(config) for digest, config in own.items()}
        keys = _called(differing(list(settings.values())), list(settings.values()))
        for digest, values in settings.items():
            words = [_worded(key, values.get(key, UNSET), called) for key, called in keys.items()]
            words = [word for word in words if word]
            named = words[:MOST_NAMED] + ([f"and {len(words) - MOST_NAMED} more"] if len(words) > MOST_NAMED else [])
            label = f"{method}: {', '.join(named)}" if named else method
            found[digest] = label if label not in found.values() else f"{label} ({digest})"
    return found


def settings_of(config: RunConfig) -> dict[str, Any]:
    """All that may differ, by dotted key; what a run records rather than does is left out."""
    data = plain(config)
    ignored = ("seed", "diagnostics", "method_name", "runtime", "stream", "scale")
    return {
        **flatten(data["method"]),
        **{key: value for key, value in flatten(data).items() if key.split(".")[0] not in (*ignored, "method")},
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values differ, without those that only follow from another one: the fields of another part."""
    keys = dict.fromkeys(key for one in settings for key in one)
    differ = [key for key in keys if len({repr(one.get(key, UNSET)) for one in settings}) > 1]
    exchanged = [key.removesuffix(f".{KIND}") for key in differ if key.endswith(f".{KIND}")]
    implied = {key for place in exchanged for key in FOLLOWS.get(place, ())}
    kinds = [key for key in differ if key.endswith(f".{KIND}")]
    others = [key for key in differ if key not in kinds and key not in implied]
    # What tells most comes first: a label may have no room for all.
    return kinds + [key for key in others if not any(key.startswith(f"{place}.") for place in exchanged)]


def _called(keys: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Keys and what they are called; of settings that end alike and change together only one, called by that end.

    >>> _called(["first.epochs", "later.epochs"], [{"first.epochs": 1, "later.epochs": 1}, {}])
    {'first.epochs': 'epochs'}
    """
    named: dict[str, str] = {}
    for key in keys:
        last = key.rpartition(".")[2]
        twins = [
            other
            for other in named
            if other.rpartition(".")[2] == last != KIND and all(one.get(other) == one.get(key) for one in settings)
        ]
        if twins:
            named[twins[0]] = last
        else:
            named[key] = ".".join(key.split(".")[-2:])
    return named


def _worded(key: str, value: Any, called: str) -> str:
    """A setting in few words.

    >>> _worded("representation.terms.anti_collapse.beta", 10.0, "beta"), _worded("drift.kind", "affine", "drift")
    ('β = 10', 'drift affine')
    """
    if key == f"{TERMS}distillation.{KIND}":
        return NO_DISTILLATION if value is UNSET else DISTILLATIONS.get(value, str(value))
    if key == f"{TERMS}anti_collapse.{KIND}":
        return "no L_AC" if value is UNSET else "L_AC"
    if value is UNSET:
        return ""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    if key == f"{TERMS}anti_collapse.beta":
        return f"β = {shown}"
    if key == f"{TERMS}distillation.weight":
        return f"λ = {shown}"
    if key.endswith(f".{KIND}"):
        return f"{key.removesuffix(f'.{KIND}').split('.')[-1].replace('_', ' ')} {shown}"
    return f"{called} = {shown}"
