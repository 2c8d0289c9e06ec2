"""Every `adagauss` command in documents and help texts parses: options, and for runs methods and settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from adagauss.cli import app
from adagauss.cli.options import Experiment
from adagauss.core.config import flatten, plain
from adagauss.experiments.protocols import protocol
from adagauss.methods import make_method, methods

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _commands() -> list[str]:
    found = []
    for path in DOCUMENTS:
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if match := re.match(r"(?:\w+=\S+ )*(adagauss .*)", line):
                    found.append(match[1].split(" #")[0].strip())
    return found


def _commands_of_the_program() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    commands: dict[str, Any] = dict(group.commands)
    return commands


def _examples() -> list[str]:
    """Commands in the help texts; a pipe before one is not its own."""
    texts = [command.epilog or "" for command in _commands_of_the_program().values()]
    texts.append(app.registered_callback.epilog if app.registered_callback else "")
    quoted = [example for text in texts for example in re.findall(r"`([^`]+)`", text)]
    return [example[example.index("adagauss ") :] for example in quoted if "adagauss " in example]


def _parsed(line: str) -> Any:
    name, *arguments = shlex.split(line)[1:]
    return _commands_of_the_program()[name].make_context(name, arguments)


def test_every_command_has_help_with_an_example_of_its_own() -> None:
    for name, command in _commands_of_the_program().items():
        assert command.hidden or f"adagauss {name}" in (command.epilog or ""), name
        assert command.help


@pytest.mark.parametrize("line", [*_commands(), *_examples()])
def test_a_documented_command_parses(line: str) -> None:
    assert _parsed(line) is not None, "click would have refused it"


@pytest.mark.parametrize(
    "line", [line for line in [*_commands(), *_examples()] if line.split()[1] in ("run", "compare")]
)
def test_the_methods_of_a_documented_command_take_its_settings(line: str) -> None:
    given = _parsed(line).params
    chosen = given.get("methods") or given["method"]
    settings = Experiment.of(_parsed(line)).settings
    layers = protocol(given["protocol"]).layers("reference") if given["protocol"] else []
    for name in methods() if chosen == "all" else chosen.split(","):
        resolved = flatten(plain(make_method(name, settings=settings, layers=layers)))
        for key, value in settings.items():
            assert resolved[key] == (str(Path(value).absolute()) if key == "backbone.weights" else value)
