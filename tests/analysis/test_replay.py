"""Replaying a run gives what the run gave, and an oracle above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from adagauss.analysis.figures import write_figures
from adagauss.analysis.replay import Replay, replay, table
from adagauss.benchmark import RunConfig, RunFolder, make_config, run
from adagauss.classifiers import Bayes, NearestMean
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.drift import NoDrift

SETTINGS = {
    "representation.first.epochs": 6,
    "representation.later.epochs": 6,
    "drift.network": "affine",
    "drift.views": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    stream = StreamConfig(dataset="digits", sizes=(2, 2, 2), classes=6)
    path = tmp_path_factory.mktemp("run")
    run(make_config("adagauss", stream, load_dataset("digits"), settings=SETTINGS), path)
    return RunFolder(path)


@pytest.fixture(scope="module")
def replayed(folder: RunFolder) -> Replay:
    method = RunConfig.of(folder.config).method
    drifts = {"own": method.drift, "none": NoDrift()}
    return replay(
        folder, load_dataset("digits"), drifts, {"own": method.classifier, "mean": NearestMean(), "b": Bayes()}
    )


def test_the_runs_own_parts_give_the_runs_own_numbers(folder: RunFolder, replayed: Replay) -> None:
    own = next(row for row in replayed.rows if (row.drift, row.classifier) == ("own", "own"))
    assert own.accuracy == pytest.approx(folder.read_json("metrics.json")["accuracy_after_task"]["task_mean"])


def test_following_the_drift_is_better_than_staying_and_worse_than_knowing(replayed: Replay) -> None:
    last = {row.drift: row.a_last for row in replayed.rows if row.classifier == "b"}
    assert last["none"] < last["own"] <= last["oracle"]


def test_the_table_has_a_line_a_drift_and_a_column_a_classifier(replayed: Replay) -> None:
    lines = table([replayed]).splitlines()
    assert len(lines) == 2 + 3
    assert lines[0].count("|") == 2 + 4


def test_figures_are_drawn_from_the_folder_alone(folder: RunFolder) -> None:
    paths = write_figures(folder)
    assert {path.name for path in paths} == {"accuracy.png", "matrix.png", "gaussians.png"}
    assert all(Path(path).stat().st_size > 5000 for path in paths)
