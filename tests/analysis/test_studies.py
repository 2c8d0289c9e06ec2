"""Studies: each is drawn or gives the reason, figures state their origin, and runs that do not compare are refused."""

from __future__ import annotations

import csv
import io
import statistics
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from adagauss.analysis.figures import MOST_LINES, against_efc, confusion_figure, front, late_errors, share_over_fair
from adagauss.analysis.measure import Quantity, measure
from adagauss.analysis.plotting import (
    METHODS,
    Line,
    Panel,
    bar_figure,
    colour,
    draw_curves,
    marker,
    mean_and_deviation,
    places,
    save_figure,
)
from adagauss.analysis.studies import (
    Drawn,
    NotDrawableError,
    analyse,
    check_comparable,
    find_study,
    group_by_settings,
    labels,
    studies,
    summary,
)
from adagauss.analysis.tables import comma_separated
from adagauss.data.dataset import load_dataset
from adagauss.data.images import Label
from adagauss.data.stream import StreamConfig
from adagauss.errors import ConfigError
from adagauss.experiments.config import make_config
from adagauss.experiments.metrics import Evaluation
from adagauss.experiments.run import Run, RunFolder, TaskFacts
from adagauss.methods import methods
from tests.analysis.conftest import SETTINGS, STREAM
from tests.analysis.made_runs import config_of, run_of

COMMAND = "adagauss analyse here --study {study}"
ANTI_COLLAPSE = "representation.terms.anti_collapse"
SWEEPS: dict[str, dict[str, Any]] = {
    "beta": {f"{ANTI_COLLAPSE}.beta": 10.0},
    "distillation": {ANTI_COLLAPSE: None},
    "ranks-by-distillation": {ANTI_COLLAPSE: None},
}
"""Figures of runs that differ in one setting, and that setting."""
COMPARE_DISTILLATIONS = {"ranks-by-distillation", "distillation"}


@pytest.fixture(scope="module")
def drawn(opened: Run, other: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Drawn]]:
    out = tmp_path_factory.mktemp("figures")
    names = [name for name in studies() if name not in SWEEPS]
    groups = {"with L_AC": [opened], "without": [other]}
    found = analyse(groups, out, names=names, images=lambda: load_dataset("digits"), command=COMMAND)
    for name, changed in SWEEPS.items():
        config = make_config("adagauss", STREAM, settings={**SETTINGS, **changed})
        sweep = {"with L_AC": [opened], "without": [with_content(opened, config=config)]}
        found += analyse(sweep, out, names=[name], command=COMMAND)
    return out, {one.name: one for one in found}


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def synthetic(classes: int, names: tuple[Label, ...], seed: int = 0) -> Run:
    """A measured run of two tasks with random predictions."""
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
    run = run_of(Path("run"), config, evaluations, [facts, facts], names)
    return run.with_tables({"memory.shift": shift})


def test_every_study_is_drawn_or_gives_the_reason(drawn: tuple[Path, dict[str, Drawn]]) -> None:
    _, found = drawn
    assert found.keys() == studies().keys()
    assert all(one.missing is None for one in found.values()), {one.name: one.missing for one in found.values()}


def test_every_figure_comes_with_its_numbers(drawn: tuple[Path, dict[str, Drawn]]) -> None:
    out, found = drawn
    for one in found.values():
        assert {path.suffix for path in one.files.values()} == {".png", ".svg", ".csv", ".txt"}
        assert all(path.parent == out and path.stat().st_size > 100 for path in one.files.values())
        rows = rows_of(one.files["csv"])
        assert {"with L_AC", "without"} & {row["group"] for row in rows} or one.name in COMPARE_DISTILLATIONS
        assert all("digits, 3 tasks" in row["protocol"] for row in rows)


def test_every_figure_states_its_origin(drawn: tuple[Path, dict[str, Drawn]]) -> None:
    for name, one in drawn[1].items():
        for ending in ("svg", "txt"):
            text = one.files[ending].read_text(encoding="utf-8")
            assert "digits, 3 tasks; 6 classes; seed 0; adagauss 0." in text, name
            assert f"--study {name}" in text


def test_figures_for_a_paper_are_as_wide_as_its_page_and_have_their_origin_in_metadata(
    opened: Run, other: Run, tmp_path: Path
) -> None:
    groups = {"with L_AC": [opened], "without": [other]}
    (one,) = analyse(groups, tmp_path, names=["recency"], command=COMMAND, style="paper")
    assert set(one.files) == {"png", "pdf", "csv", "txt"}
    caption = one.files["txt"].read_text(encoding="utf-8")
    assert caption.startswith("Share of predictions by task\n")
    assert "digits, 3 tasks" in caption
    assert "--study recency" in caption
    with Image.open(one.files["png"]) as image:
        assert "digits, 3 tasks" in image.info["Description"]
        assert image.width == pytest.approx(7.0 * 300, abs=2)
    with pytest.raises(ConfigError, match="unknown style 'papr'; did you mean 'paper'"):
        analyse(groups, tmp_path, names=["recency"], style="papr")


def test_a_method_has_its_colour_and_marker_in_every_figure(opened: Run) -> None:
    by_method = {name: [with_content(opened, config=config_of(name))] for name in ("lwf", "adagauss", "finetune")}
    alone = {"any label": by_method["finetune"]}
    assert places(by_method) == [METHODS.index(name) for name in by_method]
    assert places(alone) == [METHODS.index("finetune")]
    two = {"a": by_method["adagauss"], "b": by_method["adagauss"], "c": [with_content(opened, config=config_of("efc"))]}
    assert places(two) == [0, 2, 1]
    assert len({(colour(place), marker(place)) for place in range(len(METHODS))}) == len(METHODS)
    assert set(METHODS) == set(methods()), "every method has a place"


def test_the_colours_of_the_papers_methods_differ_under_colour_blindness() -> None:
    # Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
    protan = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    deutan = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    rgb = np.array([to_rgb(colour(place)) for place in range(11)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    for matrix in (np.eye(3), np.array(protan), np.array(deutan)):
        seen = np.clip(linear @ matrix.T, 0, 1) ** (1 / 2.4)
        apart = np.linalg.norm(seen[:, None] - seen[None], axis=2)[np.triu_indices(11, 1)]
        assert apart.min() > 0.08


def test_lines_are_named_from_the_highest_end_down(opened: Run) -> None:
    curves = {"low": [1.0, 0.2], "high": [0.5, np.nan, 0.9], "empty": [np.nan], "middle": [0.1, 0.3]}
    lines = [Line(name, [opened], [{"value": np.array(one)}], 0) for name, one in curves.items()]
    (legend,) = draw_curves([Panel("value", "value")], lines).figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["high", "middle", "low", "empty"]


def test_more_methods_than_one_panel_can_show_have_a_panel_each(opened: Run) -> None:
    accuracy = find_study("accuracy")
    many = {f"method {number}": [opened] for number in range(MOST_LINES + 1)}
    assert len(accuracy.draw({"one": [opened]}).figure.axes) == 1
    drawing = accuracy.draw(many)
    assert len([axes for axes in drawing.figure.axes if axes.get_title()]) == len(many)
    assert {row["group"] for row in drawing.rows} == set(many)


def test_a_bar_has_room_for_its_deviation_and_the_number_is_at_the_edge() -> None:
    (axes,) = bar_figure({"minutes": {"one": [1.0, 1.0], "other": [0.0, 190.0]}}).axes
    assert axes.get_xlim()[1] > 95 + statistics.stdev([0.0, 190.0])
    assert [text.get_text() for text in axes.texts] == ["1.0", "95.0"]


def test_a_sweep_refuses_runs_that_differ_in_more_than_its_axis(opened: Run, tmp_path: Path) -> None:
    def with_beta(beta: float, **settings: Any) -> list[Run]:
        chosen = {"representation.terms.anti_collapse.beta": beta, "drift.kind": "affine", **settings}
        return [with_content(opened, config=config_of("adagauss", (2, 2, 2), settings=chosen))]

    beta = find_study("beta")
    with pytest.raises(NotDrawableError, match="all runs have β = 1"):
        beta.draw({"a": with_beta(1.0)})
    with pytest.raises(NotDrawableError, match=r"these differ in drift\.views"):
        beta.draw({"a": with_beta(1.0), "b": with_beta(10.0, **{"drift.views": 7})})
    assert beta.draw({"a": with_beta(1.0), "b": with_beta(10.0)}).rows


def test_the_csv_files_contain_the_numbers_of_the_paper(drawn: tuple[Path, dict[str, Drawn]]) -> None:
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


def test_drawing_again_gives_the_same_bytes(opened: Run, drawn: tuple[Path, dict[str, Drawn]], tmp_path: Path) -> None:
    first, second = (analyse({"a": [opened]}, tmp_path / name, names=["recency"])[0] for name in ("one", "two"))
    for ending in ("png", "svg", "csv"):
        assert first.files[ending].read_bytes() == second.files[ending].read_bytes()


def test_without_images_figures_that_need_none_are_drawn(copied: RunFolder, tmp_path: Path) -> None:
    names = ["recency", "ranks", "distances", "strength", "distillation"]
    found = {one.name: one for one in analyse({"a": [Run.open(copied.path)]}, tmp_path / "out", names=names)}
    assert {name for name, one in found.items() if one.missing and "--data-root" in one.missing} == {
        "distances",
        "strength",
    }
    assert found["ranks"].missing is None
    assert found["recency"].files["png"].exists()
    missing = found["distillation"].missing
    assert missing is not None
    assert "compares distillations" in missing


def test_figures_that_do_not_need_a_damaged_network_are_drawn(copied: RunFolder, tmp_path: Path) -> None:
    copied.checkpoint(1).write_bytes(copied.checkpoint(1).read_bytes()[:-100])
    recency, ranks = analyse({"a": [Run.open(copied.path)]}, tmp_path / "out", names=["recency", "ranks"])
    assert recency.missing is None
    assert "is damaged" in str(ranks.missing)


def test_an_unfinished_run_is_drawn_with_a_note(unfinished: RunFolder, tmp_path: Path) -> None:
    found = analyse({"a": [Run.open(unfinished.path)]}, tmp_path / "out", names=["recency", "ranks", "shift"])
    assert "copied (1 of 3 tasks)" in found[0].note
    assert found[1].missing is None
    assert found[2].missing == "it needs runs of two tasks or more"


def with_content(run: Run, **content: Any) -> Run:
    """The same run with other content."""
    changed = run.with_tables(run.tables)
    vars(changed).update(content)
    return changed


def test_runs_that_do_not_compare_are_refused(opened: Run, other: Run) -> None:
    check_comparable({"a": [opened], "b": [other]})
    with pytest.raises(ConfigError, match="has other settings than"):
        check_comparable({"a": [opened, other]})
    with pytest.raises(ConfigError, match="give only one"):
        check_comparable({"a": [opened, opened]})
    small = with_content(opened, config=opened.config.with_changes(scale="cpu"))
    with pytest.raises(ConfigError, match="analyse them separately"):
        check_comparable({"a": [opened], "b": [small]})
    with pytest.raises(ConfigError, match="no runs to analyse"):
        analyse({}, Path("out"))


def test_versions_of_the_code_are_distinguished(opened: Run) -> None:
    old = with_content(opened, environment={"adagauss": "0.0.1", "source": "old"})
    assert "different" not in summary({"a": [opened]})
    assert "2 different code versions: adagauss 0.0.1, source old" in summary({"a": [opened], "b": [old]})


def test_one_seed_has_no_band_and_two_have_one(opened: Run) -> None:
    def bands(*curves: list[float]) -> int:
        line = Line("one", [opened] * len(curves), [{"accuracy": np.array(curve)} for curve in curves], 0)
        return len(draw_curves([Panel("accuracy", "accuracy")], [line]).figure.axes[0].collections)

    assert bands([1.0, 2.0]) == 0
    assert bands([1.0, 2.0], [2.0, 3.0]) == 1


def test_means_over_runs_of_different_lengths_equal_numpy() -> None:
    runs = [np.array([1.0, 5.0, 3.0]), np.array([2.0, np.nan]), np.array([6.0, 7.0])]
    mean, deviation = mean_and_deviation(runs)
    assert mean.tolist() == [3.0, 6.0, 3.0]
    assert deviation[:2].tolist() == pytest.approx([statistics.stdev([1, 2, 6]), statistics.stdev([5, 7])])
    assert np.isnan(deviation[2])


@pytest.mark.parametrize("classes", [100, 1000])
@pytest.mark.parametrize("name", ["confusion", "shift"])
def test_many_classes_with_any_names_can_be_drawn(name: str, classes: int, tmp_path: Path) -> None:
    names = tuple(f"{'鳥' * (index % 40)} $x_{{ {index}\n{'very long ' * 9}" for index in range(classes))
    drawing = find_study(name).draw({"a $group$": [synthetic(classes, names)]})
    save_figure(drawing.figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    parsed = list(csv.DictReader(io.StringIO(comma_separated(drawing.rows))))
    assert len(parsed) == len(drawing.rows)


def test_dollars_and_foreign_letters_in_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = confusion_figure([[3, 1], [2, 2]], ["a$b_{$", "鳥"], "a run of $\\frac$")
        save_figure(figure, tmp_path / "names.png")
    assert (tmp_path / "names.png").stat().st_size > 5000


def test_the_recency_bias_is_counted() -> None:
    true, predicted = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), torch.tensor([2, 3, 1, 0, 2, 2, 3, 3])
    first = Evaluation(true[:4], true[:4], true[:4], (2,))
    run = with_content(synthetic(4, (0, 1, 2, 3)), evaluations=[first, Evaluation(true, predicted, predicted, (2, 2))])
    assert share_over_fair(run).tolist() == pytest.approx([0.5, 1.5])
    assert late_errors(run).tolist() == pytest.approx([2 / 3])


def test_the_pareto_front_equals_brute_force() -> None:
    points = np.random.default_rng(0).integers(0, 12, (60, 2)).astype(float)
    chosen = {tuple(points[row]) for row in front(points)}
    expected = {
        tuple(one)
        for one in points
        if not any((other[0] <= one[0] and other[1] >= one[1]) and tuple(other) != tuple(one) for other in points)
    }
    assert chosen == expected


def test_the_change_against_efc_is_relative(opened: Run, drawn: tuple[Path, dict[str, Drawn]]) -> None:
    run = measure(opened, None, {Quantity.REAL})
    halved = run.table("real.distances").copy()
    halved[:, :, 0] = halved[:, :, 2] / 2
    tables = {**run.tables, "real.distances": torch.from_numpy(halved)}
    assert against_efc([run.with_tables(tables)], "mean") == pytest.approx(-0.5)


def test_groups_are_labelled_by_the_settings_that_differ(opened: Run, other: Run) -> None:
    names = list(group_by_settings([opened, other]))
    assert all(name.startswith("adagauss: ") for name in names)
    assert "no L_AC" in names[1]
    assert list(group_by_settings([opened])) == ["adagauss"]


def test_labels_name_distillation_and_beta_without_implied_settings() -> None:
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
    without = {f"{term}.anti_collapse.weight": 0.0, "drift.anti_collapse": 0.0}
    weights = {"1": make_config("adagauss", stream), "0": make_config("adagauss", stream, settings=without)}
    assert labels(weights) == {"1": "adagauss: α = 1", "0": "adagauss: α = 0"}
