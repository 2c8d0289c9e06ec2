"""`adagauss report` from a shell."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.made_runs import config_of, made_run
from tests.cli.conftest import Command


def test_the_command_prints_the_file_and_the_folders_left_out(adagauss: Command, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    made_run(tmp_path / "run", config_of())
    outcome = adagauss("report", tmp_path / "run", tmp_path / "gone", "--out", out, "--quiet", "--study", "none")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"1 run: {out} (")
    assert "gone is left out" in outcome.said
    assert adagauss("report", tmp_path / "run", "--out", tmp_path).said.endswith(f"such as {tmp_path / 'report.html'}")
