"""Replaying a run gives what the run gave, and an oracle above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from adagauss.analysis.figures import write_figures
from adagauss.analysis.replay import Replay, replay, table
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError
from adagauss.experiments.config import RunConfig, make_config
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import run
from adagauss.methods.efc import Rebalanced
from adagauss.parts.classifiers import Bayes, NearestMean
from adagauss.parts.drift import NoDrift
from adagauss.parts.memory import GaussianMemory, MeanMemory


@pytest.fixture(scope="module")
def replayed(folder: RunFolder) -> Replay:
    method = RunConfig.of(folder.config).method
    drifts = {"own": method.drift, "none": NoDrift()}
    return replay(
        folder, load_dataset("digits"), drifts, {"own": method.classifier, "mean": NearestMean(), "b": Bayes()}
    )


def test_the_runs_own_parts_give_the_runs_own_numbers(folder: RunFolder, replayed: Replay) -> None:
    own = next(row for row in replayed.rows if (row.drift, row.classifier) == ("own", "own"))
    assert own.accuracy == pytest.approx(Run.open(folder.path).curve)


@pytest.mark.parametrize(
    ("method", "why"), [("efc", "its drift reads what a term shares"), ("acil", "its classifier keeps sums")]
)
def test_parts_that_know_earlier_tasks_give_the_runs_own_numbers(method: str, why: str, tmp_path: Path) -> None:
    source = load_dataset("digits")
    config = make_config(method, StreamConfig(dataset="digits", sizes=(2, 2, 2), classes=6), epochs=1)
    result = run(config, tmp_path, dataset=source)
    parts = RunConfig.of(RunFolder(tmp_path).config).method
    replayed = replay(RunFolder(tmp_path), source, {"own": parts.drift}, {"own": parts.classifier})
    assert replayed.rows[0].accuracy == pytest.approx(result.curve), why


def test_more_may_be_remembered_than_the_run_did(folder: RunFolder) -> None:
    source, drifts, classifiers = load_dataset("digits"), {"none": NoDrift()}, {"bayes": Bayes()}
    with pytest.raises(ConfigError, match="needs the covariance of each class"):
        replay(folder, source, drifts, classifiers, memory=MeanMemory())
    diagonal = replay(folder, source, drifts, classifiers, memory=GaussianMemory(covariance="diagonal"))
    assert diagonal.rows[0].accuracy != replay(folder, source, drifts, classifiers).rows[0].accuracy


def test_what_cannot_be_replayed_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    source = load_dataset("digits")
    with pytest.raises(ConfigError, match="'rebalanced' trains the network's own outputs"):
        replay(folder, source, {"none": NoDrift()}, {"own": Rebalanced()})
    run(make_config("joint", StreamConfig(dataset="digits", sizes=(2,), classes=2), epochs=1), tmp_path)
    with pytest.raises(ConfigError, match="no drift to replay"):
        replay(RunFolder(tmp_path), source, {"none": NoDrift()}, {"mean": NearestMean()})


def test_following_the_drift_is_better_than_staying_and_worse_than_knowing(replayed: Replay) -> None:
    last = {row.drift: row.a_last for row in replayed.rows if row.classifier == "b"}
    assert last["none"] < last["own"] <= last["oracle"]


def test_a_replay_survives_its_json(replayed: Replay, tmp_path: Path) -> None:
    replayed.write(tmp_path / "replay.json")
    assert Replay.read(tmp_path / "replay.json", "") == replayed


def test_the_table_has_a_line_a_classifier_and_a_column_a_drift(replayed: Replay) -> None:
    lines = table([replayed]).splitlines()
    classifiers = {row.classifier for row in replayed.rows}
    drifts = {row.drift for row in replayed.rows}
    assert len(lines) == 2 + len(classifiers) + 1
    assert all(line.count("|") == 2 + len(drifts) for line in lines)


def test_the_table_gives_the_spread_over_seeds(replayed: Replay) -> None:
    perfect = [row.model_copy(update={"accuracy": (1.0,) * len(row.accuracy)}) for row in replayed.rows]
    better = replayed.model_copy(update={"rows": tuple(perfect)})
    last = replayed.rows[0].a_last
    shown = table([replayed, better]).splitlines()[2]
    assert f"{50 * (1 + last):.1f} ± {100 * (1 - last) / 2**0.5:.1f} /" in shown


def test_figures_are_drawn_from_the_folder_alone(folder: RunFolder) -> None:
    paths = write_figures(folder)
    assert {path.name for path in paths} == {"accuracy.png", "confusion.png", "gaussians.png", "matrix.png"}
    assert all(Path(path).stat().st_size > 5000 for path in paths)
