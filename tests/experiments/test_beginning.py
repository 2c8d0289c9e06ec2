"""The environment in a run folder: the command."""

from __future__ import annotations

import pytest

from adagauss.experiments.environment import COMMAND, command, environment


@pytest.mark.parametrize(
    ("program", "shown"), [("/usr/bin/adagauss", "adagauss"), ("/lib/adagauss/__main__.py", "python -m adagauss")]
)
def test_the_command_is_kept_as_a_shell_takes_it(program: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program, "run", "--dataset", "my birds"])
    assert command() == {COMMAND: f"{shown} run --dataset 'my birds'"}
    assert COMMAND not in environment(), "a run resumed by another command would complain"
