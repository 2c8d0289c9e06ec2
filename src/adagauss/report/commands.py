"""The command that makes a run: found from its configuration, and checked to give that very configuration."""

from __future__ import annotations

import json
import shlex
from typing import Any

from adagauss.core.config import KIND, flatten, plain
from adagauss.errors import AdagaussError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.protocols import PROTOCOLS, Protocol
from adagauss.methods import method_info
from adagauss.utils.files import as_yaml

STREAM_OPTIONS = ("tasks", "first", "sizes", "classes", "image_size")
ROUNDS = 3
"""Exchanging a part brings its own settings, among which are parts again."""


def command(config: RunConfig) -> str | None:
    """``adagauss run ...`` that resolves to this configuration; None if no options give it."""
    protocol = protocol_of(config)
    settings = changed_settings(config, protocol)
    if settings is None or not (protocol or _is_textual(config.stream.class_order)):
        return None
    words = ["adagauss", "run", "--method", config.method_name]
    if config.preset and config.preset != _default_preset(config):
        words += ["--preset", config.preset]
    words += ["--protocol", protocol.name] if protocol else _stream_words(config)
    for key, value in settings.items():
        words += ["--set", f"{key}={as_yaml(value)}"]
    words += ["--seed", str(config.seed)]
    if config.diagnostics != "last":
        words += ["--diagnostics", config.diagnostics]
    words += _runtime_words(config)
    return shlex.join(words)


def protocol_of(config: RunConfig) -> Protocol | None:
    """The named protocol with these tasks at this scale."""
    for protocol in PROTOCOLS.values():
        if protocol.stream == config.stream and protocol.scale == config.scale:
            return protocol
    return None


def follows_paper(config: RunConfig) -> bool:
    """Whether it is a protocol of the paper, with the method's own settings for it."""
    protocol = protocol_of(config)
    settings = changed_settings(config, protocol)
    return protocol is not None and settings is not None and protocol.is_papers(settings)


def changed_settings(config: RunConfig, protocol: Protocol | None) -> dict[str, Any] | None:
    """What must be set so that this configuration comes out; None if setting does not suffice."""
    wanted = _flat(config)
    given: dict[str, Any] = {}
    for _ in range(ROUNDS):
        try:
            now = make_config(
                config.method_name,
                config.stream,
                preset=config.preset,
                settings=given,
                seed=config.seed,
                runtime=config.runtime,
                diagnostics=config.diagnostics,
                protocol=protocol,
            )
        except AdagaussError:
            return None
        if now.digest() == config.digest():
            return given
        has = _flat(now)
        differing = {key: value for key, value in wanted.items() if key not in has or has[key] != value}
        kinds = {key: value for key, value in differing.items() if key.rpartition(".")[2] == KIND}
        # A part is exchanged before its settings are compared: most of them are its defaults then.
        given |= kinds or differing
    return None


def _flat(config: RunConfig) -> dict[str, Any]:
    # JSON turns tuples into lists, so that equal values compare equal.
    flat: dict[str, Any] = flatten(json.loads(json.dumps(plain(config.method))))
    return flat


def _default_preset(config: RunConfig) -> str | None:
    return method_info(config.method_name).default_preset


def _stream_words(config: RunConfig) -> list[str]:
    stream = config.stream
    words = ["--dataset", stream.dataset]
    for option in STREAM_OPTIONS:
        value = getattr(stream, option)
        if value is None or (option == "tasks" and stream.sizes):
            continue
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"--{option.replace('_', '-')}", shown]
    if stream.class_order == "seeded":
        words += ["--class-order-seed", str(stream.class_order_seed)]
    elif stream.class_order is not None:
        order = stream.class_order
        words += ["--class-order", ",".join(map(str, order)) if isinstance(order, tuple) else str(order)]
    return [*words, "--skip-bad"] if stream.skip_bad_images else words


def _is_textual(order: object) -> bool:
    """Whether ``--class-order`` can give it: numbers come out of the command line as text."""
    if isinstance(order, tuple):
        return len(order) > 1 and all(isinstance(one, str) and one == one.strip() and "," not in one for one in order)
    return order is None or isinstance(order, str)


def _runtime_words(config: RunConfig) -> list[str]:
    runtime = config.runtime
    words = ["--device", runtime.device] if runtime.device != "auto" else []
    words += ["--precision", runtime.precision] if runtime.precision != "32-true" else []
    return [*words, "--compile"] if runtime.compile else words
