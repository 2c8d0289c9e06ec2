"""Names for configurations: the method, and the settings in which it differs from others of the same method."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from adagauss.config import plain
from adagauss.runs.configuration import RunConfig
from adagauss.settings import KIND, flatten

MOST_NAMED = 3
"""Settings that a label names; if more differ, it says how many."""


def labels(configs: Mapping[str, RunConfig]) -> dict[str, str]:
    """A name for each configuration (by digest): its method, and what tells it from others of that method."""
    named: dict[str, str] = {}
    for method in dict.fromkeys(config.method_name for config in configs.values()):
        own = {digest: settings_of(one) for digest, one in configs.items() if one.method_name == method}
        keys = differing(list(own.values()))
        for digest, settings in own.items():
            named[digest] = _label(method, settings, keys)
    doubled = [digest for digest, label in named.items() if list(named.values()).count(label) > 1]
    return {digest: f"{label} [{digest}]" if digest in doubled else label for digest, label in named.items()}


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same everywhere; of an exchanged part only its kind.

    >>> differing([{"drift.kind": "none", "rate": 1}, {"drift.kind": "sdc", "drift.width": 3, "rate": 2}])
    ['drift.kind', 'rate']
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    found = [key for key in keys if len({json.dumps(one.get(key, "absent"), default=str) for one in settings}) > 1]
    exchanged = [key.removesuffix(KIND) for key in found if key.endswith(f".{KIND}")]
    return [key for key in found if not _within(key, exchanged)]


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Every setting of a run but the seed, by dotted key."""
    flat = {key.removeprefix("method."): value for key, value in flatten(plain(config)).items()}
    return {key: value for key, value in flat.items() if key != "seed"}


def _within(key: str, exchanged: Sequence[str]) -> bool:
    """Whether it is a setting of a part that stands only in some of the configurations."""
    return any(key.startswith(prefix) and key != f"{prefix}{KIND}" for prefix in exchanged)


def _label(method: str, settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    own = [key for key in keys if key in settings]
    if not own:
        return method
    named = [f"{key}={settings[key]}" for key in own[:MOST_NAMED]]
    more = len(own) - len(named)
    return f"{method} ({', '.join(named)}{f' and {more} more' if more else ''})"
