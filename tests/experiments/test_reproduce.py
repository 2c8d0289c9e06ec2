"""Reproducing items: nothing is run twice, failures are values, and claims are checked seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from adagauss.errors import NumericalError
from adagauss.experiments.grid import Workers
from adagauss.experiments.paper import (
    SCALES,
    Benchmark,
    Claim,
    Item,
    Relation,
    Row,
    Value,
    find_items,
    items,
)
from adagauss.experiments.reproduce import (
    ItemResults,
    Problem,
    Reproduced,
    ReproductionConfig,
    check_claim,
    distinct_runs,
    finished_run,
    list_lines,
    plan,
    read_rescored,
    reproduce,
    rescore_missing,
    run_missing,
    summarised,
    table_rows,
    write_page,
)
from adagauss.experiments.run import Run, RunFolder
from tests.experiments.tiny_scale import TINY

NAMES = ["ablation", "spectrum"]
"""Both need AdaGauss with and without anti-collapse, and no other run."""
Made = tuple[ReproductionConfig, list[Reproduced]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    config = ReproductionConfig(TINY, tmp_path_factory.mktemp("reproduce"))
    return config, reproduce(find_items(NAMES), config)


@pytest.fixture
def config(tmp_path: Path) -> ReproductionConfig:
    return ReproductionConfig(TINY, tmp_path)


def test_two_runs_are_shared_by_both_items_and_all_eight_rows(made: Made) -> None:
    config, (ablation, spectrum) = made
    assert len(list(config.runs.iterdir())) == 2
    (found,) = ablation.results
    assert [len(found.numbers(label)) for label in found.outcomes] == [1] * 8
    assert set(spectrum.results[0].runs) == {"AdaGauss", "without anti-collapse"}


def test_rescoring_without_changes_gives_the_accuracy_of_the_run(made: Made) -> None:
    config, _ = made
    (found,) = plan(find_items(["ablation"]), config)
    one = next(one for one in found.planned if one.row.label == "8 AdaGauss")
    file = config.out / "rescored" / "unchanged.json"
    unchanged = one._replace(row=replace(one.row, rescore={}), rescored=file)
    rescore_missing([replace(found, planned=[unchanged])], config)
    run = finished_run(one.run, config)
    assert isinstance(run, Run)
    assert read_rescored(file, config) == pytest.approx(run.curve)


def test_tables_are_written_in_every_format_with_the_papers_numbers(made: Made) -> None:
    _, (ablation, _) = made
    tables = {path.suffix: path.read_text(encoding="utf-8") for path in ablation.files if path.stem == "table"}
    assert set(tables) == {".md", ".tex", ".csv"}
    assert "bars.png" in {path.name for path in ablation.files}
    for text in tables.values():
        assert "8 AdaGauss" in text
        assert "four digits" in text, "the caption must name the scale"
    assert "46.1" in tables[".md"]
    assert "46.1" in tables[".csv"]
    assert "46.1" not in tables[".tex"], "LaTeX tables hold measured numbers only"


def test_the_figure_of_an_item_is_drawn_and_its_claim_reads_the_numbers(made: Made) -> None:
    _, (_, spectrum) = made
    assert {path.name for path in spectrum.files} >= {"spectrum.png", "spectrum.svg", "spectrum.csv"}
    verdict = check_claim(spectrum.item.claims[0], spectrum.results[0])
    assert verdict.word == "inconclusive"
    assert verdict.seeds.startswith("one seed")


def test_a_second_call_runs_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = made

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was finished")

    monkeypatch.setattr("adagauss.experiments.grid.run", never)
    monkeypatch.setattr("adagauss.experiments.reproduce.rescore", never)
    reproduce(find_items(["ablation"]), config)
    place = "Fig. 6"
    listed = list_lines(find_items(NAMES), config)
    assert f"spectrum: Eigenvalues with and without anti-collapse ({place}); 2 of 2 runs are finished" in listed


def test_finished_runs_are_used_without_running_the_rest(
    config: ReproductionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adagauss.experiments.reproduce.run_missing", lambda *_: pytest.fail("it ran"))
    (made,) = reproduce(find_items(["batchnorm"]), config, run=False)
    assert {problem.kind for problem in made.results[0].problems().values()} == {"missing"}
    assert any(path.name == "table.tex" for path in made.files)


def test_an_item_without_runs_at_a_scale_has_no_files_and_no_error(tmp_path: Path) -> None:
    (made,) = reproduce(find_items(["table2"]), ReproductionConfig(SCALES["cpu"], tmp_path))
    assert made.files == []
    assert made.results == []


def test_a_page_is_written_from_finished_runs(made: Made, tmp_path: Path) -> None:
    config, _ = made
    write_page(reproduce(find_items([*NAMES, "half"]), config, run=False), config, tmp_path / "paper.md")
    page = (tmp_path / "paper.md").read_text(encoding="utf-8")
    sections = {part.splitlines()[0]: part for part in page.split("\n## ")}
    ablation = sections["Ablation: the parts of AdaGauss"]
    assert "- *All parts together are best.*\n  cifar100-10-tiny: 8 AdaGauss" in ablation
    assert "**Inconclusive.**" in ablation, "one seed is not enough"
    b50 = sections["B50: half of the classes first"]
    assert "*AdaGauss is better than PASS and SSRE.*\n  Not measured yet.\n" in b50
    assert "DS-AL on frozen" not in sections["All claims"], "a claim that was not measured has no verdict"
    assert "2 of 9 runs are finished" in page
    for ending in ("tex", "csv"):
        assert f"(tables/paper/ablation.{ending})" in ablation
        table = (tmp_path / "tables" / "paper" / f"ablation.{ending}").read_text(encoding="utf-8")
        assert "8 AdaGauss" in table
        assert ("46.1" in table) == (ending == "csv"), "LaTeX tables hold measured numbers only"
    pictures = [line.rpartition("(")[2].rstrip(")") for line in page.splitlines() if line.startswith("![")]
    assert len(pictures) == 2, "the bars of the ablation, and the spectrum"
    assert all((tmp_path / picture).exists() for picture in pictures)
    assert "\n\n\n" not in page


def test_a_failed_run_is_a_value_and_the_others_go_on(
    config: ReproductionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(find_items(["spectrum"]), config)
    runs = distinct_runs(planned)
    tried = []

    def run(config: object, path: Path, **_: object) -> None:
        tried.append(path)
        if len(tried) == 1:
            raise NumericalError("the loss became NaN: lower the rate")

    monkeypatch.setattr("adagauss.experiments.grid.run", run)
    run_missing(runs, config)
    (found,) = planned
    assert found.problems()["AdaGauss"] == ("failed", "the loss became NaN: lower the rate")
    assert found.problems()["without anti-collapse"].kind == "missing"
    with ThreadPoolExecutor(1) as executor:
        run_missing(runs, replace(config, workers=Workers(executor)))
    assert len(tried) == 4, "a failed run is tried again"
    assert plan(find_items(["spectrum"]), config)[0].problems()["AdaGauss"].kind == "missing", "it did not fail again"


def test_a_run_in_use_by_another_process_is_left_to_it(config: ReproductionConfig) -> None:
    runs = distinct_runs(plan(find_items(["confusion"]), config))
    with RunFolder(runs[0].folder).lock():
        run_missing(runs, config)
    state = finished_run(runs[0], config)
    assert isinstance(state, Problem)
    assert state.kind == "missing", "it neither ran nor failed"


# Claims.

PAPER_NUMBERS = {"A": 46.1, "B": 43.6}


def found_with(
    rows: Mapping[str, Mapping[int, float]] | None = None, drawn: Sequence[Mapping[str, str]] = ()
) -> ItemResults:
    """Results with these values of A_last by row and seed, and these rows of a figure."""

    class Known(ItemResults):
        features = 8.0

        def paper_values(self, label: str) -> dict[str, float]:
            return {"a_last": PAPER_NUMBERS[label]} if label in PAPER_NUMBERS else {}

    item = Item("made-up", "made up", "nowhere", tuple(map(Row, rows or {})), {"cpu": ()})
    outcomes = {
        label: {seed: {"a_last": value} for seed, value in values.items()} for label, values in (rows or {}).items()
    }
    found = Known(item, Benchmark("none"), ReproductionConfig(TINY, Path("nowhere")))
    vars(found).update(outcomes=outcomes, figure_rows=drawn)
    return found


def claim_on(relation: Relation, *rows: str) -> Claim:
    return Claim("a claim", relation, tuple(Value(row, {"row": row, "quantity": "a_last"}) for row in rows))


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ({0: 3.0, 1: 3.5}, {0: 2.0, 1: 2.5}, "holds"),
        ({0: 1.0, 1: 1.5}, {0: 2.0, 1: 2.5}, "does not hold"),
        ({0: 3.0, 1: 1.5}, {0: 2.0, 1: 2.5}, "inconclusive"),
        ({0: 3.0}, {0: 2.0}, "inconclusive"),
        ({0: 3.0, 1: 3.5}, {2: 2.0}, "not measured"),
        ({}, {0: 2.0}, "not measured"),
    ],
)
def test_a_comparison_uses_the_seeds_that_both_rows_have(
    ours: dict[int, float], theirs: dict[int, float], word: str
) -> None:
    assert check_claim(claim_on("highest", "A", "B"), found_with({"A": ours, "B": theirs})).word == word


def test_highest_means_above_the_best_other_row_in_every_seed() -> None:
    # On average A is best, but in seed 1 C is.
    rows = {"A": {0: 9.0, 1: 5.0}, "B": {0: 1.0, 1: 1.0}, "C": {0: 2.0, 1: 6.0}}
    assert check_claim(claim_on("highest", "A", "B", "C"), found_with(rows)).word == "inconclusive"


def test_lowest_means_below_the_worst_other_row_in_every_seed() -> None:
    rows = {"A": {0: 1.0, 1: 2.0}, "B": {0: 2.0, 1: 9.0}, "C": {0: 5.0, 1: 3.0}}
    assert check_claim(claim_on("lowest", "A", "B", "C"), found_with(rows)).word == "holds"
    assert check_claim(claim_on("lowest", "B", "A", "C"), found_with(rows)).word == "does not hold"


def test_a_verdict_quotes_the_paper_and_names_missing_rows() -> None:
    found = found_with({"A": {0: 3.0, 1: 3.0}, "B": {0: 2.0, 1: 2.0}})
    verdict = check_claim(claim_on("highest", "A", "B", "C"), found)
    assert str(verdict) == "A 3.0, B 2.0 (without C) (paper: 46.1 and 43.6); true in each of 2 seeds: holds"


def test_an_order_holds_only_if_every_step_does() -> None:
    found = found_with({"A": {0: 3.0, 1: 3.0}, "B": {0: 2.0, 1: 2.0}, "C": {0: 1.0, 1: 2.5}})
    assert check_claim(claim_on("decreasing", "A", "B", "C"), found).word == "inconclusive"
    assert check_claim(claim_on("decreasing", "A", "B"), found).word == "holds"
    assert check_claim(claim_on("decreasing", "A", "B", "D"), found).word == "not measured"


def drawn(group: str, seed: int, *values: float) -> list[dict[str, str]]:
    return [{"group": group, "seed": str(seed), "value": str(value)} for value in values]


def test_a_claim_on_a_figure_reads_its_numbers_seed_by_seed() -> None:
    found = found_with(drawn=[*drawn("A", 0, 1, 5), *drawn("A", 1, 2, 6), {"group": "paper", "seed": "", "value": "9"}])
    early, late = Value("early", {"group": "A"}, "first"), Value("late", {"group": "A"}, "last")
    other = Value("B", {"group": "B"})
    assert check_claim(Claim("It rises.", "highest", (late, early)), found).word == "holds"
    assert check_claim(Claim("It falls.", "highest", (early, late)), found).word == "does not hold"
    assert check_claim(Claim("Another.", "highest", (early, other)), found).word == "not measured"


def test_a_trend_over_tasks_is_tested_with_all_tasks_and_seeds() -> None:
    logit = (Value("logit", {"group": "A"}),)
    rising, falling = Claim("It rises.", "rising", logit), Claim("It falls.", "falling", logit)
    trend = found_with(drawn=[*drawn("A", 0, 1, 2, 3, 5, 4), *drawn("A", 1, 1, 3, 2, 4, 5)])
    assert check_claim(rising, trend).word == "holds"
    assert "Kendall's τ over tasks +0.80 (p = 0.013)" in check_claim(rising, trend).numbers
    assert check_claim(falling, trend).word == "does not hold"
    # The last task is above the first one, but the curve zigzags.
    zigzag = found_with(drawn=[*drawn("A", 0, 1, 4, 0, 3, 2), *drawn("A", 1, 1, 5, 0, 4, 2)])
    assert check_claim(rising, zigzag).word == "inconclusive"
    assert check_claim(rising, found_with()).word == "not measured"


def test_there_is_no_verdict_if_one_side_alone_was_tuned() -> None:
    found = found_with({"A": {0: 3.0, 1: 3.5}, "B": {0: 2.0, 1: 2.5}})
    claim = replace(claim_on("highest", "A", "B"), biased={"cpu": "A alone was tuned"}, change=-0.5)
    verdict = check_claim(claim, found)
    assert (verdict.word, verdict.seeds) == ("cannot tell", "true in each of 2 seeds, but A alone was tuned")
    assert "(-31%; paper: -50%)" in verdict.numbers, "the size of the effect is next to that of the paper"


def test_the_spread_of_a_figure_is_measured_within_each_task() -> None:
    assert summarised("spread", [("2", 1.0), ("2", 2.0), ("3", 1.0), ("3", 4.0)]) == 3.0


def test_a_number_that_reaches_its_bound_satisfies_the_claim() -> None:
    full = Claim("Full rank.", "at least", (Value("rank", {"group": "A"}, "min"),), "features")
    assert check_claim(full, found_with(drawn=[*drawn("A", 0, 8, 8), *drawn("A", 1, 8)])).word == "holds"
    assert check_claim(full, found_with(drawn=[*drawn("A", 0, 8, 7.9), *drawn("A", 1, 7)])).word == "does not hold"


# Tables with the paper's numbers.


@pytest.fixture
def times() -> ItemResults:
    found = ItemResults(items()["time"], Benchmark("cifar100-10"), ReproductionConfig(TINY, Path("nowhere")))
    vars(found)["outcomes"] = {
        "LwF": {seed: {"training_min": 2.0 + 2 * seed, "inference_sec": 12.0} for seed in (0, 1)},
        "SSRE": {0: Problem("failed", "the loss became NaN")},
    }
    return found


def test_times_are_minutes_of_training_and_seconds_of_inference(times: ItemResults) -> None:
    line, failed = table_rows([times])
    assert line["training, min"] == "3.0 ± 1.4"
    assert "recipe of" not in line
    own = replace(times, config=ReproductionConfig(replace(TINY, recipe="own"), Path("nowhere")))
    vars(own)["outcomes"] = times.outcomes
    assert [row["recipe of"] for row in table_rows([own])] == ["FACIL; schedule ours", "authors; first task ours"]
    assert line["paper training, min"] == "53.8 ± 2.9"
    assert line["inference, s"] == "12.0 ± 0.0"
    assert failed["note"] == "failed: the loss became NaN"


def test_the_papers_numbers_of_half_first_tables_are_next_to_the_accuracy_that_each_code_reports() -> None:
    found = ItemResults(items()["half"], Benchmark("cifar100-half-5"), ReproductionConfig(TINY, Path("nowhere")))
    numbers = {"a_last": 50.0, "a_inc": 60.0, "a_last_pooled": 55.0, "a_inc_pooled": 65.0}
    vars(found)["outcomes"] = {label: {0: numbers} for label in ("FeCAM", "AdaGauss")}
    fecam, adagauss = table_rows([found])
    assert (fecam["A_last, per image"], fecam["paper A_last, per image"], fecam["paper A_last"]) == (
        "55.0",
        "60.2",
        "–",
    )
    assert (adagauss["A_last"], adagauss["paper A_last"], adagauss["paper A_last, per image"]) == ("50.0", "58.9", "–")
