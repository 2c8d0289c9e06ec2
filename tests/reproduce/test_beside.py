"""Pictures of a table: ours and the paper's, each on its own axis."""

from __future__ import annotations

import pytest

from adagauss.experiments.run import Cost, Details, ProtocolFacts, RunResult
from adagauss.reproduce import ITEMS, Where
from adagauss.reproduce.beside import beside_figure
from adagauss.reproduce.cells import Problem
from adagauss.reproduce.findings import Found, Outcome, Score
from adagauss.reproduce.tables import table_rows


def finished(minutes: float) -> RunResult:
    cost = Cost(
        seconds={"training": 60 * minutes, "evaluation": 12.0},
        images_per_second=1.0,
        bytes_per_class=0,
        other_state_bytes=0,
    )
    protocol = ProtocolFacts(dataset="digits", scale="cpu", tasks=(2,), classes=(), test_images=0)
    details = Details(
        accuracy=(), pooled_accuracy=(), accuracy_matrix=(), task_aware_matrix=(), prediction_share=(), confusion=()
    )
    return RunResult(
        method="lwf", preset=None, seed=0, config="", protocol=protocol, metrics={}, details=details, cost=cost
    )


@pytest.fixture
def found() -> Found:
    scores: list[Outcome] = [Score(0, 30.0, 40.0, finished(2)), Score(1, 31.0, 41.0, finished(4))]
    outcomes: dict[str, list[Outcome]] = {"LwF": scores, "SSRE": [Problem("failed", "the loss became NaN")]}
    return Found(ITEMS["time"], Where("cifar100-10"), "cifar100-10-cpu", "cifar100", 10, outcomes, {})


def test_times_are_minutes_of_training_and_seconds_of_inference(found: Found) -> None:
    line, failed = table_rows([found])
    assert line["training, min"] == "3.0 ± 1.4"
    assert line["paper training, min"] == "53.8 ± 2.9"
    assert line["inference, s"] == "12.0 ± 0.0"
    assert failed["note"] == "failed: the loss became NaN"


def test_minutes_and_seconds_do_not_share_an_axis_with_each_other_or_with_the_papers(found: Found) -> None:
    figure = beside_figure(found)
    assert figure is not None
    drawn = [(axes.get_title(), axes.get_xlabel()) for axes in figure.axes]
    ours = "cifar100-10-cpu, 2 seeds"
    assert drawn == [
        (ours, "training, min"),
        ("", "inference, s"),
        ("paper", "training, min"),
        ("paper", "inference, s"),
    ]
    widths = [[round(bar.get_width(), 1) for bar in axes.patches] for axes in figure.axes]  # type: ignore[attr-defined]
    assert widths == [[3.0], [12.0], [53.8], [66.3]], "a row without numbers has no bar"


def test_a_table_without_numbers_has_no_picture(found: Found) -> None:
    empty = Found(found.item, found.where, found.benchmark, found.dataset, 10, {"LwF": []}, {})
    assert beside_figure(empty) is None
