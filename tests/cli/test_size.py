"""The command line stays small."""

from __future__ import annotations

import typer.main

from adagauss.cli import app

MOST_COMMANDS, MOST_OPTIONS = 17, 120


def test_there_are_few_commands_and_options() -> None:
    group = typer.main.get_command(app)
    commands = {"": group, **group.commands}  # type: ignore[attr-defined]
    options = [f"{name} {one.name}" for name, command in commands.items() for one in command.params]
    arguments = [one for command in commands.values() for one in command.params if one.param_type_name == "argument"]
    assert len(commands) - 1 <= MOST_COMMANDS
    assert len(options) - len(arguments) <= MOST_OPTIONS
