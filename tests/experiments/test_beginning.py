"""The environment in a run folder: the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adagauss.data.dataset import load_dataset
from adagauss.experiments.environment import COMMAND, begin, environment
from adagauss.experiments.run import ENVIRONMENT, RunFolder
from adagauss.utils.runtime import Runtime


@pytest.mark.parametrize(
    ("program", "shown"), [("/usr/bin/adagauss", "adagauss"), ("/lib/adagauss/__main__.py", "python -m adagauss")]
)
def test_the_command_is_kept_as_a_shell_takes_it(
    program: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [program, "run", "--dataset", "my birds"])
    begin(RunFolder(tmp_path), load_dataset("digits"), Runtime())
    kept = json.loads((tmp_path / ENVIRONMENT).read_text(encoding="utf-8"))
    assert kept[COMMAND] == f"{shown} run --dataset 'my birds'"
    assert COMMAND not in environment(), "a run resumed by another command would complain"
