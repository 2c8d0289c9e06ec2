"""Every `adagauss compare` and `adagauss run` in the documents can be said: options, protocols, methods, settings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from adagauss.benchmark.protocols import protocol
from adagauss.cli import app
from adagauss.cli.options import parse_settings
from adagauss.methods import make_method, methods

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _commands() -> list[tuple[str, str]]:
    found = []
    for path in DOCUMENTS:
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if match := re.search(r"\badagauss (run|compare) .*", line):
                    found.append((path.name, match[0].split(" #")[0]))
    return found


@pytest.mark.parametrize(("document", "line"), _commands())
def test_a_documented_command_can_be_said(document: str, line: str) -> None:
    _, name, *arguments = shlex.split(line)
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    given = command.make_context(name, arguments, resilient_parsing=False).params
    chosen = given.get("methods") or given.get("method") or "adagauss"
    wishes = protocol(given["protocol"]).wishes("reference") if given["protocol"] else {}
    for method in methods() if chosen == "all" else chosen.split(","):
        make_method(method, settings=parse_settings(given["settings"]), wishes=wishes)
