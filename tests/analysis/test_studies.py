"""Studies: every one is drawn or says why not, figures say where they come from, and bad input is refused."""

from __future__ import annotations

import csv
import dataclasses
import io
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adagauss.analysis.grouping import grouped, labels
from adagauss.analysis.measured import Measured, Quantity, measure
from adagauss.analysis.plotting import new_figure, save_figure
from adagauss.analysis.studies import Drawn, analyse, find_study, studies
from adagauss.analysis.studies.distances import against_efc
from adagauss.analysis.studies.draw import chosen_studies, table
from adagauss.analysis.studies.lines import Mean, curve
from adagauss.analysis.studies.pareto import front
from adagauss.analysis.studies.provenance import check_together, summary
from adagauss.analysis.studies.recency import late_excess, share_over_fair
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError
from adagauss.experiments.config import make_config
from adagauss.experiments.metrics import Evaluation
from adagauss.experiments.run import RunFolder, TaskFacts

COMMAND = "adagauss analyse here --study {study}"
COMPARE_DISTILLATIONS = {"ranks-by-distillation", "distillation"}


@pytest.fixture(scope="module")
def drawn(
    folder: RunFolder, collapsed: RunFolder, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Drawn]]:
    out = tmp_path_factory.mktemp("figures")
    groups = {"with L_AC": [folder], "without": [collapsed]}
    found = analyse(groups, out, names=list(studies()), dataset=load_dataset("digits"), command=COMMAND)
    return out, {one.name: one for one in found}


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def synthetic(classes: int, names: tuple[object, ...], seed: int = 0) -> Measured:
    """A run of two tasks as it would be measured, with answers drawn at random."""
    sizes = (classes // 2, classes - classes // 2)
    generator = torch.Generator().manual_seed(seed)
    evaluations = []
    for task in range(2):
        known = sum(sizes[: task + 1])
        true = torch.arange(known).repeat(2)
        predicted = torch.where(torch.rand(len(true), generator=generator) < 0.5, true, true.flip(0))
        evaluations.append(Evaluation(true, predicted, true, sizes[: task + 1]))
    config = make_config("adagauss", StreamConfig(dataset="digits", sizes=sizes, classes=classes), seed=seed)
    facts = TaskFacts(
        seconds={"representation": 1.0}, images_per_second=1.0, bytes_per_class=8, other_state_bytes=0, history=()
    )
    shift = torch.rand(2, classes, 2, dtype=torch.float64)
    shift[0] = torch.nan
    shift[1, sizes[0] :] = torch.nan
    return Measured(
        Path("run"), config, names, evaluations, [facts, facts], {}, 2, tables={"memory.shift": shift}, missing={}
    )


def test_every_study_is_drawn_or_says_why_not(drawn: tuple[Path, dict[str, Drawn]]) -> None:
    _, found = drawn
    assert found.keys() == studies().keys()
    assert all(one.missing is None for one in found.values()), {one.name: one.missing for one in found.values()}


def test_every_figure_comes_with_its_numbers(drawn: tuple[Path, dict[str, Drawn]]) -> None:
    out, found = drawn
    for one in found.values():
        assert {path.suffix for path in one.files.values()} == {".png", ".svg", ".csv"}
        assert all(path.parent == out and path.stat().st_size > 100 for path in one.files.values())
        rows = rows_of(one.files["csv"])
        assert {"with L_AC", "without"} & {row["group"] for row in rows} or one.name in COMPARE_DISTILLATIONS
        assert all("digits, 3 tasks" in row["protocol"] for row in rows)


def test_every_figure_says_where_it_comes_from(drawn: tuple[Path, dict[str, Drawn]]) -> None:
    for name, one in drawn[1].items():
        text = one.files["svg"].read_text(encoding="utf-8")
        assert "digits, 3 tasks, paper scale; 6 classes; seed 0; adagauss 0." in text, name
        assert f"--study {name}" in text


def test_the_papers_numbers_are_beside_ours(drawn: tuple[Path, dict[str, Drawn]]) -> None:
    papers = {
        name: [float(row["value"]) for row in rows_of(drawn[1][name].files["csv"]) if row["group"] == "paper"]
        for name in ("spectrum", "distances", "shrink", "distillation", "ranks-by-distillation")
    }
    assert papers == {
        "spectrum": [120000, 84],
        "distances": [-0.29, -0.39, -0.72],
        "shrink": [60.2],
        "distillation": [1.4, 0.9, 4.0],
        "ranks-by-distillation": [64],
    }


def test_drawing_again_gives_the_same_bytes(
    folder: RunFolder, drawn: tuple[Path, dict[str, Drawn]], tmp_path: Path
) -> None:
    first, second = (analyse({"a": [folder]}, tmp_path / name, names=["recency"])[0] for name in ("one", "two"))
    for ending in ("png", "svg", "csv"):
        assert first.files[ending].read_bytes() == second.files[ending].read_bytes()


def test_without_images_figures_that_need_none_are_drawn(copied: RunFolder, tmp_path: Path) -> None:
    names = ["recency", "ranks", "distances", "strength", "distillation"]
    found = {one.name: one for one in analyse({"a": [copied]}, tmp_path / "out", names=names)}
    assert {name for name, one in found.items() if one.missing and "--data-root" in one.missing} == {
        "distances",
        "strength",
    }
    assert found["ranks"].missing is None
    assert found["recency"].files["png"].exists()
    missing = found["distillation"].missing
    assert missing is not None
    assert "compares distillations" in missing


def test_what_trains_something_again_is_drawn_only_when_asked_for(copied: RunFolder, folder: RunFolder) -> None:
    every = list(studies().values())
    assert [study.name for study in every if study not in chosen_studies(None, [copied])] == ["shrink"]
    assert [study.name for study in chosen_studies(["shrink"], [copied])] == ["shrink"]
    measure(folder, load_dataset("digits"), frozenset({Quantity.REAL, Quantity.FROZEN, Quantity.SHRINK}))
    assert chosen_studies(None, [folder]) == every, "it was measured already"


def test_an_unfinished_run_is_drawn_as_far_as_it_goes_and_says_so(unfinished: RunFolder, tmp_path: Path) -> None:
    found = analyse({"a": [unfinished]}, tmp_path / "out", names=["recency", "ranks", "balance"])
    assert "copied (1 of 3 tasks)" in found[0].note
    assert found[1].missing is None
    assert found[2].missing == "it needs runs of two tasks or more"


def test_runs_that_do_not_compare_are_refused(folder: RunFolder, collapsed: RunFolder) -> None:
    one, other = (measure(path, None, frozenset({Quantity.ANSWERS})) for path in (folder, collapsed))
    check_together({"a": [one], "b": [other]})
    with pytest.raises(ConfigError, match="has other settings than"):
        check_together({"a": [one, other]})
    with pytest.raises(ConfigError, match="no evidence of spread"):
        check_together({"a": [one, one]})
    small = dataclasses.replace(one, config=one.config.with_changes(scale="cpu"))
    with pytest.raises(ConfigError, match="analyse them separately"):
        check_together({"a": [one], "b": [small]})
    with pytest.raises(ConfigError, match="no runs to analyse"):
        analyse({}, Path("out"))


def test_runs_of_different_code_are_told_apart(folder: RunFolder) -> None:
    one = measure(folder, None, frozenset({Quantity.ANSWERS}))
    other = dataclasses.replace(one, environment={"adagauss": "0.0.1", "source": "old"})
    assert "different" not in summary({"a": [one]})
    assert "2 different states of the code: adagauss 0.0.1, source old" in summary({"a": [one], "b": [other]})


def test_one_seed_has_no_band_and_two_have_one() -> None:
    axes = new_figure().add_subplot()
    curve(axes, [np.array([1.0, 2.0])], "one", 0)
    assert not axes.collections
    curve(axes, [np.array([1.0, 2.0]), np.array([2.0, 3.0])], "two", 1)
    assert len(axes.collections) == 1


def test_means_over_runs_of_different_lengths_equal_numpy() -> None:
    runs = [np.array([1.0, 5.0, 3.0]), np.array([2.0, np.nan]), np.array([6.0, 7.0])]
    found = Mean.of(runs)
    assert found.mean.tolist() == [3.0, 6.0, 3.0]
    assert found.deviation[:2].tolist() == pytest.approx([statistics.stdev([1, 2, 6]), statistics.stdev([5, 7])])
    assert np.isnan(found.deviation[2])


@pytest.mark.parametrize("classes", [100, 1000])
@pytest.mark.parametrize("name", ["confusion", "shift"])
def test_many_classes_with_any_names_can_be_drawn(name: str, classes: int, tmp_path: Path) -> None:
    names = tuple(f"{'鳥' * (index % 40)} $x_{{ {index}\n{'very long ' * 9}" for index in range(classes))
    drawing = find_study(name).draw({"a $group$": [synthetic(classes, names)]})
    save_figure(drawing.figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    parsed = list(csv.DictReader(io.StringIO(table(drawing.rows))))
    assert len(parsed) == len(drawing.rows)
    assert not any("\n" in value for row in parsed for value in row.values())


def test_the_recency_bias_is_counted() -> None:
    true, predicted = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), torch.tensor([2, 3, 1, 0, 2, 2, 3, 3])
    first = Evaluation(true[:4], true[:4], true[:4], (2,))
    run = dataclasses.replace(
        synthetic(4, (0, 1, 2, 3)), evaluations=[first, Evaluation(true, predicted, predicted, (2, 2))]
    )
    assert share_over_fair(run).tolist() == pytest.approx([0.5, 1.5])
    assert late_excess(run).tolist() == pytest.approx([2 / 3])


def test_the_pareto_front_equals_brute_force() -> None:
    points = np.random.default_rng(0).integers(0, 12, (60, 2)).astype(float)
    chosen = {tuple(points[row]) for row in front(points)}
    expected = {
        tuple(one)
        for one in points
        if not any((other[0] <= one[0] and other[1] >= one[1]) and tuple(other) != tuple(one) for other in points)
    }
    assert chosen == expected


def test_the_change_against_efc_is_relative(folder: RunFolder, drawn: tuple[Path, dict[str, Drawn]]) -> None:
    run = measure(folder, None, frozenset({Quantity.REAL}))
    halved = run.table("real.distances").copy()
    halved[:, 0] = halved[:, 2] / 2
    tables = {**run.tables, "real.distances": torch.from_numpy(halved)}
    assert against_efc([dataclasses.replace(run, tables=tables)], "mean") == pytest.approx(-0.5)


def test_groups_are_named_after_what_differs(folder: RunFolder, collapsed: RunFolder) -> None:
    names = list(grouped([folder, collapsed]))
    assert all(name.startswith("adagauss: ") for name in names)
    assert "no L_AC" in names[1]
    assert list(grouped([folder])) == ["adagauss"]


def test_labels_name_distillation_and_beta_and_leave_out_what_follows() -> None:
    stream, term = StreamConfig(), "representation.terms"
    settings: dict[str, dict[str, Any]] = {
        "projected": {},
        "none": {f"{term}.distillation": None},
        "logit": {f"{term}.distillation.kind": "logit_distillation", "representation.heads": "keep"},
    }
    found = labels({key: make_config("adagauss", stream, settings=value) for key, value in settings.items()})
    assert found == {"projected": "adagauss: projected KD", "none": "adagauss: no KD", "logit": "adagauss: logit KD"}
    betas = {
        str(beta): make_config("adagauss", stream, settings={f"{term}.anti_collapse.beta": beta}) for beta in (1, 10)
    }
    assert labels(betas) == {"1": "adagauss: β = 1", "10": "adagauss: β = 10"}
