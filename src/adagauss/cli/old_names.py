"""Old names of commands and options: accepted with a note for one release."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from importlib import resources

from adagauss.cli.output import warn

_NAMES = json.loads(resources.files("adagauss.cli").joinpath("old_names.json").read_text(encoding="utf-8"))
COMMANDS: dict[str, str] = _NAMES["commands"]
OPTIONS: dict[str, str] = _NAMES["options"]
"""Old options, of all commands or of one; the value replaces the braces."""


def current_words(words: Sequence[str]) -> list[str]:
    """Replace old names in a command line, with a note on each.

    >>> current_words(["rename", "m.safetensors", "a", "b", "--join"])
    ['rename', 'm.safetensors', 'a', 'b', '--merge']
    """
    command, *rest = words or [""]
    if command in COMMANDS:
        command, *more = COMMANDS[command].split()
        rest = [*more, *rest]
        if words[0] == "merge" and "--into" in rest[:-1]:  # MODEL OTHER --into OUT
            place = rest.index("--into")
            rest = [rest[place + 1], *rest[:place], *rest[place + 2 :]]
        if words[0] == "datasets":
            rest = ["--fetch" if word == "fetch" else word for word in rest]
        warn(f"`adagauss {words[0]}` is deprecated: use `adagauss {shlex.join([command, *rest])}`")
    found = [command] if words else []
    while rest and rest[0] != "--":
        option, sign, value = rest.pop(0).partition("=")
        template = OPTIONS.get(f"{command} {option}", OPTIONS.get(option, ""))
        if not template:
            found.append(option + sign + value)
            continue
        if "{" in template and not sign and rest:
            value = rest.pop(0)
        new = [word.format(value) for word in template.split()]
        warn(f"{option} is deprecated: use {shlex.join(new)}")
        found += new
    return [*found, *rest]
