"""Old names of commands and options: accepted with a note for one release."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from adagauss.cli.output import warn

COMMANDS = {
    "backbones": "list backbones",
    "datasets": "list datasets",
    "demo": "compare --methods adagauss,finetune",
    "gather": "teach",
    "merge": "teach",
    "methods": "list methods",
    "protocols": "list protocols",
    "replay": "rescore",
}
OPTIONS = {
    "--class-order-seed": "--set stream.class_order=seeded --set stream.class_order_seed={}",
    "--classes": "--set stream.classes={}",
    "--compile": "--set runtime.compile=true",
    "--dask": "--engine dask={}",
    "--first": "--set stream.first={}",
    "--join": "--merge",
    "--log": "--logger {}",
    "--precision": "--set runtime.precision={}",
    "--ray": "--engine ray={}",
    "--sizes": "--tasks {}",
    "--slurm": "--engine slurm={}",
    "--train-blocks": "--set backbone.train_blocks={}",
    "compare --image-size": "--set stream.image_size={}",
    "compare --skip-bad": "--set stream.skip_bad_images=true",
    "rescore --like": "--parts-from {}",
    "rescore -l": "--parts-from {}",
    "run --class-order": "--set stream.class_order={}",
    "run --image-size": "--set stream.image_size={}",
    "run --skip-bad": "--set stream.skip_bad_images=true",
    "teach --epochs": "--set representation.first.epochs={0} --set representation.later.epochs={0}",
    "teach --like": "--features-from {}",
    "tune --image-size": "--set stream.image_size={}",
    "tune --skip-bad": "--set stream.skip_bad_images=true",
}
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
