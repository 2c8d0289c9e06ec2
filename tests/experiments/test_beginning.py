"""The environment in a run folder: the command and the commit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from adagauss.data.dataset import load_dataset
from adagauss.experiments.environment import COMMAND, COMMIT, begin, commit, environment
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
    assert kept.get(COMMIT) == commit()
    assert not {COMMAND, COMMIT} & environment().keys(), "a run resumed by another command would complain"


def test_a_commit_is_that_of_the_library_or_unknown() -> None:
    found = commit()
    assert found is None or re.fullmatch(r"[0-9a-f]{12,40}(-dirty)?", found)
