"""Every `adagauss` command in the documents can be said: options, and for runs protocols, methods and settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from adagauss.cli import app
from adagauss.cli.options import parse_settings
from adagauss.config import plain
from adagauss.methods import make_method, methods
from adagauss.runs.protocols import protocol
from adagauss.settings import flatten

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


def _parsed(line: str) -> dict[str, Any]:
    _, name, *arguments = shlex.split(line)
    group: Any = typer.main.get_command(app)
    parameters: dict[str, Any] = group.commands[name].make_context(name, arguments).params
    return parameters


@pytest.mark.parametrize("line", _commands())
def test_a_documented_command_parses(line: str) -> None:
    assert _parsed(line) is not None, "click would have refused it"


@pytest.mark.parametrize("line", [line for line in _commands() if line.split()[1] in ("run", "compare")])
def test_the_methods_of_a_documented_command_take_its_settings(line: str) -> None:
    given = _parsed(line)
    chosen = given.get("methods") or given["method"]
    settings = parse_settings(given["settings"])
    layers = protocol(given["protocol"]).layers("reference") if given["protocol"] else []
    for name in methods() if chosen == "all" else chosen.split(","):
        resolved = flatten(plain(make_method(name, settings=settings, layers=layers)))
        for key, value in settings.items():
            assert resolved[key] == (str(Path(value).absolute()) if key == "backbone.weights" else value)
