"""The README's commands are ones that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from adagauss.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
LINES = [line for line in README.splitlines() if line.startswith("adagauss ")]


def test_its_first_two_commands_are_targets_of_the_makefile() -> None:
    commands = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert commands[:2] == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{command}:" in makefile for command in commands)


@pytest.mark.parametrize("line", LINES)
def test_its_commands_parse(line: str) -> None:
    words = shlex.split(line.split("#")[0])[1:]
    group: Any = typer.main.get_command(app)
    context = group.commands[words[0]].make_context(words[0], words[1:])
    assert context.params


def test_every_file_it_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
