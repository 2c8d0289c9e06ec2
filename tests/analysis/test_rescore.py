"""Rescoring a run with its own parts gives its own numbers, and the oracle is the upper bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from adagauss.analysis.rescore import RescoredRun, rescore, rescored_rows
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError
from adagauss.experiments.config import make_config
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import run
from adagauss.methods.efc import Rebalanced
from adagauss.parts.classifiers import Bayes, NearestMean
from adagauss.parts.drift import NoDrift
from adagauss.parts.memory import GaussianMemory, MeanMemory


@pytest.fixture(scope="module")
def rescored(folder: RunFolder) -> RescoredRun:
    method = folder.config.method
    drifts = {"own": method.drift, "none": NoDrift()}
    return rescore(
        Run.open(folder.path),
        load_dataset("digits"),
        drifts,
        {"own": method.classifier, "mean": NearestMean(), "b": Bayes()},
    )


def test_the_runs_own_parts_give_the_runs_own_numbers(folder: RunFolder, rescored: RescoredRun) -> None:
    own = next(row for row in rescored.rows if (row.drift, row.classifier) == ("own", "own"))
    assert own.accuracy == pytest.approx(Run.open(folder.path).curve)


@pytest.mark.parametrize(
    ("method", "why"), [("efc", "its drift reads what a term shares"), ("acil", "its classifier keeps sums")]
)
def test_parts_that_know_earlier_tasks_give_the_runs_own_numbers(method: str, why: str, tmp_path: Path) -> None:
    source = load_dataset("digits")
    config = make_config(method, StreamConfig(dataset="digits", sizes=(2, 2, 2), classes=6), epochs=1)
    result = run(config, tmp_path, dataset=source)
    parts = RunFolder(tmp_path).config.method
    rescored = rescore(Run.open(tmp_path), source, {"own": parts.drift}, {"own": parts.classifier})
    assert rescored.rows[0].accuracy == pytest.approx(result.curve), why


def test_more_may_be_remembered_than_the_run_did(folder: RunFolder) -> None:
    source, drifts, classifiers = load_dataset("digits"), {"none": NoDrift()}, {"bayes": Bayes()}
    with pytest.raises(ConfigError, match="needs the covariance of each class"):
        rescore(Run.open(folder.path), source, drifts, classifiers, memory=MeanMemory())
    diagonal = rescore(Run.open(folder.path), source, drifts, classifiers, memory=GaussianMemory(covariance="diagonal"))
    assert diagonal.rows[0].accuracy != rescore(Run.open(folder.path), source, drifts, classifiers).rows[0].accuracy


def test_what_cannot_be_rescored_is_refused(folder: RunFolder, tmp_path: Path) -> None:
    source = load_dataset("digits")
    with pytest.raises(ConfigError, match="'rebalanced' trains the outputs of the network"):
        rescore(Run.open(folder.path), source, {"none": NoDrift()}, {"own": Rebalanced()})
    run(make_config("joint", StreamConfig(dataset="digits", sizes=(2,), classes=2), epochs=1), tmp_path)
    with pytest.raises(ConfigError, match="no drift to compensate"):
        rescore(Run.open(tmp_path), source, {"none": NoDrift()}, {"mean": NearestMean()})


def test_following_the_drift_is_better_than_staying_and_worse_than_knowing(rescored: RescoredRun) -> None:
    last = {row.drift: row.a_last for row in rescored.rows if row.classifier == "b"}
    assert last["none"] < last["own"] <= last["oracle"]


def test_the_table_has_a_row_per_drift_and_a_column_per_classifier(rescored: RescoredRun) -> None:
    rows = rescored_rows([rescored])
    assert [row["drift"] for row in rows] == ["own", "none", "oracle"]
    assert list(rows[0]) == [
        "drift",
        *(f"classifier {kind}" for kind in ("own", "mean", "b")),
        "log-determinant, task 1",
    ]
    assert rows[0]["log-determinant, task 1"] == f"{rescored.first_task_log_det['own']:.1f}"


def test_the_table_gives_the_spread_over_seeds(rescored: RescoredRun) -> None:
    perfect = [row._replace(accuracy=(1.0,) * len(row.accuracy)) for row in rescored.rows]
    better = rescored._replace(rows=perfect)
    last = rescored.rows[0].a_last
    shown = rescored_rows([rescored, better])[0]["classifier own"]
    assert f"{50 * (1 + last):.1f} ± {100 * (1 - last) / 2**0.5:.1f} /" in shown
