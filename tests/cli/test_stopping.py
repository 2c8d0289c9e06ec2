"""Ctrl-C: each long command says what is kept and how to go on, with exit code 130."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from adagauss.classifier import IncrementalClassifier
from adagauss.core.learn import Learner
from tests.cli.conftest import RUN, SMALL, Command


def _interrupt(*given: Any, **settings: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("target", "words", "sentence"),
    [
        ("adagauss.experiments.runner.run", ["run", "--out", "out"], "`adagauss run --out out --resume` continues"),
        ("adagauss.experiments.grid.run_grid", ["compare", "--out", "out"], "stored in out: the same command resumes"),
        ("adagauss.data.download.fetch", ["list", "datasets", "--fetch", "mnist"], "starts the download again"),
        ("adagauss.deploy.serve.main", ["serve", "m.safetensors"], "the model is saved in m.safetensors"),
        ("adagauss.methods.methods", ["list", "methods"], "nothing was changed"),
    ],
)
def test_stopped_commands_report_what_is_stored(
    adagauss: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    target: str,
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(target, _interrupt)
    outcome = adagauss(*words)
    assert outcome.code == 130
    assert sentence in outcome.said.partition("adagauss: stopped; ")[2]
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("method", "words", "sentence"),
    [
        ("partial_fit", ["teach", "birds.safetensors", "unseen"], "birds.safetensors is unchanged"),
        ("partial_fit", ["teach", "new.safetensors", "seen", *SMALL], "new.safetensors was not created"),
        ("forget", ["forget", "birds.safetensors", "owl"], "birds.safetensors is unchanged"),
        ("merge", ["teach", "b", "birds.safetensors", "copy.safetensors"], "b was not created"),
        ("classify", ["predict", "birds.safetensors", "seen"], "predictions printed so far are complete"),
        ("classify", ["evaluate", "birds.safetensors", "seen"], "nothing was changed"),
        ("export", ["export", "birds.safetensors", "b.onnx"], "nothing was changed"),
    ],
)
def test_a_model_is_whole_after_it(
    adagauss: Command, birds: Path, monkeypatch: pytest.MonkeyPatch, method: str, words: list[str], sentence: str
) -> None:
    before = birds.read_bytes()
    Path("copy.safetensors").write_bytes(before)
    monkeypatch.setattr(IncrementalClassifier, method, _interrupt)
    outcome = adagauss(*words)
    assert outcome.code == 130
    assert sentence in outcome.said
    assert birds.read_bytes() == before


def test_a_finished_change_is_reported_after_a_stop(
    adagauss: Command, birds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = IncrementalClassifier.save

    def saved_then_stopped(self: IncrementalClassifier, path: Path) -> None:
        save(self, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(IncrementalClassifier, "save", saved_then_stopped)
    outcome = adagauss("rename", birds, "owl", "Owl")
    assert outcome.code == 130
    assert "what was complete is saved" in outcome.said


def test_a_stopped_run_resumes(adagauss: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    learn = Learner.learn

    def stopped_in_the_second_task(self: Learner, *given: Any, **settings: Any) -> Any:
        if self.tasks:
            signal.raise_signal(signal.SIGINT)
        return learn(self, *given, **settings)

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start processes that ignore it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Learner, "learn", stopped_in_the_second_task)
            stopped = adagauss("run", "-m", "finetune", *RUN[1:9], "--out", "out")
    finally:
        signal.signal(signal.SIGINT, usual)
    assert stopped.code == 130, stopped.err
    assert "stopped; finished tasks are stored: `adagauss run --out out --resume`" in stopped.said
    assert "A_last" not in stopped.out
    resumed = adagauss("run", "--out", "out", "--resume", "--quiet")
    assert resumed.code == 0, resumed.err
    assert "A_last" in resumed.out
