"""Rescoring a run with its own parts gives its own numbers, and the oracle is the upper bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from adagauss.analysis.rescore import Curve, Variant, rescore, rescored_rows
from adagauss.data.dataset import Dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError
from adagauss.experiments.config import make_config
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import run
from adagauss.methods.efc import Rebalanced
from adagauss.parts.classifiers import Bayes, NearestMean
from adagauss.parts.drift import NoDrift
from adagauss.parts.memory import GaussianMemory, MeanMemory

NONE = Variant(NoDrift(), GaussianMemory())
Rescored = dict[tuple[str, str], Curve]


@pytest.fixture(scope="module")
def rescored(opened: Run, digits: Dataset) -> Rescored:
    method = opened.config.method
    variants = {"own": Variant(method.drift, method.memory), "none": Variant(NoDrift(), method.memory)}
    classifiers = {"own": method.classifier, "mean": NearestMean(), "b": Bayes()}
    return rescore(opened, digits, variants, classifiers)


def test_the_runs_own_parts_give_the_runs_own_numbers(opened: Run, rescored: Rescored) -> None:
    assert rescored["own", "own"] == pytest.approx(opened.curve)


@pytest.mark.parametrize(
    ("method", "why"), [("efc", "its drift reads what a term shares"), ("acil", "its classifier keeps sums")]
)
def test_parts_that_know_earlier_tasks_give_the_runs_own_numbers(
    method: str, why: str, digits: Dataset, tmp_path: Path
) -> None:
    config = make_config(method, StreamConfig(dataset="digits", sizes=(2, 2, 2), classes=6), epochs=1)
    result = run(config, tmp_path, dataset=digits)
    parts = RunFolder(tmp_path).config.method
    own = Variant(parts.drift, parts.memory)
    rescored = rescore(Run.open(tmp_path), digits, {"own": own}, {"own": parts.classifier}, oracle=False)
    assert rescored["own", "own"] == pytest.approx(result.curve), why


def test_more_may_be_remembered_than_the_run_did(opened: Run, digits: Dataset, rescored: Rescored) -> None:
    bayes = {"bayes": Bayes()}
    with pytest.raises(ConfigError, match="needs the covariance of each class"):
        rescore(opened, digits, {"means": Variant(NoDrift(), MeanMemory())}, bayes)
    variant = Variant(NoDrift(), GaussianMemory(covariance="diagonal"))
    diagonal = rescore(opened, digits, {"diagonal": variant}, bayes, oracle=False)
    assert diagonal["diagonal", "bayes"] != rescored["none", "b"]


def test_what_cannot_be_rescored_is_refused(opened: Run, digits: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'rebalanced' trains the outputs of the network"):
        rescore(opened, digits, {"none": NONE}, {"own": Rebalanced()})
    run(make_config("joint", StreamConfig(dataset="digits", sizes=(2,), classes=2), epochs=1), tmp_path)
    with pytest.raises(ConfigError, match="no drift to compensate"):
        rescore(Run.open(tmp_path), digits, {"none": NONE}, {"mean": NearestMean()})


def test_following_the_drift_is_better_than_staying_and_worse_than_knowing(rescored: Rescored) -> None:
    last = {variant: curve[-1] for (variant, classifier), curve in rescored.items() if classifier == "b"}
    assert last["none"] < last["own"] <= last["oracle"]


def test_the_table_has_a_row_per_drift_and_a_column_per_classifier(rescored: Rescored) -> None:
    rows = rescored_rows([rescored])
    assert [row["drift"] for row in rows] == ["own", "none", "oracle"]
    assert list(rows[0]) == ["drift", "classifier own", "classifier mean", "classifier b"]


def test_the_table_gives_the_spread_over_seeds(rescored: Rescored) -> None:
    perfect = {key: (1.0,) * len(curve) for key, curve in rescored.items()}
    last = rescored["own", "own"][-1]
    shown = rescored_rows([rescored, perfect])[0]["classifier own"]
    assert f"{50 * (1 + last):.1f} ± {100 * (1 - last) / 2**0.5:.1f} /" in shown
