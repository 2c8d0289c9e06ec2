"""Names for configurations: the method, and the settings in which it differs from others of the same method."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from adagauss.config import plain
from adagauss.names import clipped
from adagauss.runs.configuration import RunConfig
from adagauss.settings import KIND, flatten

MOST_NAMED = 3
"""Settings that a label names; if more differ, it says how many."""
LONGEST = 24
"""Columns of a value in a label."""


def labels(configs: Mapping[str, RunConfig]) -> dict[str, str]:
    """A name for each configuration (by digest): its method, and what tells it from others of that method."""
    named: dict[str, str] = {}
    for method in dict.fromkeys(config.method_name for config in configs.values()):
        own = {digest: settings_of(one) for digest, one in configs.items() if one.method_name == method}
        keys = short_keys(list(own.values()))
        for digest, settings in own.items():
            named[digest] = _label(method, settings, keys)
    doubled = [digest for digest, label in named.items() if list(named.values()).count(label) > 1]
    return {digest: f"{label} [{digest}]" if digest in doubled else label for digest, label in named.items()}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same everywhere, parts first; of an exchanged part only its kind.

    >>> differing([{"rate": 1, "drift.kind": "none"}, {"rate": 2, "drift.kind": "sdc", "drift.width": 3}])
    ['drift.kind', 'rate']
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    found = [key for key in keys if len({_compared(one, key) for one in settings}) > 1]
    exchanged = [key.removesuffix(KIND) for key in found if key.endswith(f".{KIND}")]
    outside = [key for key in found if not any(_within(key, prefix) for prefix in exchanged)]
    return sorted(outside, key=lambda key: not key.endswith(f".{KIND}"))


def short_keys(settings: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Differing keys by a short name: a part by its role, and settings that change together by their common end.

    >>> short_keys([{"first.epochs": 1, "later.epochs": 1, "drift.kind": "a"},
    ...             {"first.epochs": 2, "later.epochs": 2, "drift.kind": "b"}])
    {'drift': 'drift.kind', 'epochs': 'first.epochs'}
    """
    short: dict[str, str] = {}
    for key in differing(settings):
        name = key.removesuffix(f".{KIND}").rpartition(".")[2]
        taken = short.setdefault(name, key)
        if taken != key and any(_compared(one, taken) != _compared(one, key) for one in settings):
            short[key] = key
    return short


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Every setting of a run but the seed, by dotted key."""
    flat = {key.removeprefix("method."): value for key, value in flatten(plain(config)).items()}
    return {key: value for key, value in flat.items() if key != "seed"}


def _compared(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings.get(key, "absent"), default=str)


def _within(key: str, prefix: str) -> bool:
    """Whether it is a setting of a part that stands only in some of the configurations."""
    return key.startswith(prefix) and key != f"{prefix}{KIND}"


def _label(method: str, settings: Mapping[str, Any], keys: Mapping[str, str]) -> str:
    own = [(short, settings[key]) for short, key in keys.items() if key in settings]
    if not own:
        return method
    named = [f"{short}={clipped(value, LONGEST)}" for short, value in own[:MOST_NAMED]]
    more = len(own) - len(named)
    return f"{method} ({', '.join(named)}{f' and {more} more' if more else ''})"
