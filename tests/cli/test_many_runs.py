"""Commands that make many runs: comparisons over an engine, and the search for settings."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from adagauss.cli.options import parse_settings
from adagauss.experiments.logs import LOG
from adagauss.experiments.run import open_runs
from adagauss.utils.files import read_yaml
from tests.cli.conftest import Command

SHORT = ("--dataset", "digits", "--set", "stream.classes=4", "--tasks", "2", "--epochs", "1")


def test_a_search_prints_the_best_settings_as_options(
    adagauss: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    ranges = ("--range", "classifier.pooled_shrinkage=0..1.0", "--range", "classifier.log_det=true,false")
    outcome = adagauss("tune", "fecam", *SHORT, *ranges, "--trials", "2", "--quiet")
    assert outcome.code == 0, outcome.err
    assert "held-out training images of the first 2 task(s), 2 trials" in " ".join(outcome.out.split())
    words = shlex.split(outcome.out.splitlines()[-1])
    assert words[::2] == ["--set", "--set"]
    found = parse_settings(words[1::2])
    assert found == read_yaml(tmp_path / "runs/tune/fecam/best.yaml")
    assert 0 <= found["classifier.pooled_shrinkage"] <= 1
    assert isinstance(found["classifier.log_det"], bool)


def test_a_comparison_takes_a_preset_and_the_first_tasks(adagauss: Command, tmp_path: Path) -> None:
    words = ("--methods", "adagauss,finetune", "--seeds", "0", "--tasks", "5", "--epochs", "1", "--quiet")
    small = ("--set", "backbone.name=convnet", "--set", "backbone.features=8", "--set", "drift.recipe.epochs=1")
    outcome = adagauss("compare", *words, *small, "--preset", "paper", "--first-tasks", "2", "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    runs = {run.method: run for run in open_runs([tmp_path], strict=True)[0]}
    assert [run.sizes for run in runs.values()] == [(2, 2), (2, 2)]
    assert (runs["adagauss"].config.preset == "paper", runs["finetune"].config.preset == "paper") == (True, False)
    assert "the stream has 5 tasks" in adagauss("compare", *words, "--first-tasks", "6").said
    assert "did you mean 'paper'" in adagauss("compare", *words, "--preset", "papr").said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune", "fecam"], "at least one setting to search"),
        (["tune", "fecam", "--range", "classifier.pooled_shrinkage=0-1"], "--range takes KEY=LOW..HIGH"),
        (
            ["tune", "fecam", "--range", "classifier.pooled_shrinkage=0..1.0", "--first-tasks", "9"],
            "the stream has 5 tasks",
        ),
        (["tune", "fecam", "--range", "classifier.pooled_shrinkage=0..1.0", "--held-out", "0"], "between 0 and 1"),
        (["compare", "--engine", "dusk"], "did you mean 'dask'"),
        (["compare", "--logger", "tensorbord"], "did you mean 'tensorboard'"),
        (["run", "--logger", "tensorbord"], "did you mean 'tensorboard'"),
    ],
)
def test_impossible_options_are_error_messages(
    adagauss: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    if words[0] == "tune":
        pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    outcome = adagauss(*words)
    assert outcome.code == 2
    assert said in outcome.said
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_comparison_hands_its_options_to_the_engine_and_to_the_runs(
    adagauss: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    # Threads instead of processes: what a process does is tested with the engines.
    monkeypatch.setattr("adagauss.experiments.engines.WorkerProcesses", ThreadPoolExecutor)
    outcome = adagauss("compare", "-m", "frozen", "--seeds", "0,1", *SHORT, "--jobs", "2", "--out", tmp_path)
    assert outcome.code == 0, outcome.err
    assert "frozen, seed 1: done" in outcome.said
    assert len(list(tmp_path.glob(f"frozen-*/{LOG}"))) == 2
