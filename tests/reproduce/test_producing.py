"""Making items: nothing twice, failures as values, tables and a page from what is finished."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from adagauss.errors import NumericalError
from adagauss.reproduce import SCALES, Workshop, find_items
from adagauss.reproduce.cells import Cell, Job, Problem, distinct, jobs
from adagauss.reproduce.findings import findings
from adagauss.reproduce.overview import overview
from adagauss.reproduce.page import write_page
from adagauss.reproduce.producing import Produced, produce
from adagauss.reproduce.rescoring import read_rescored, rescore_missing, rescored_file
from adagauss.reproduce.working import Datasets, run_missing
from adagauss.runs.folder import RunFolder
from adagauss.runs.results import RunResult
from adagauss.utils.progress import Reporter
from tests.reproduce.conftest import TINY

NAMES = ["ablation", "spectrum"]
"""Both need AdaGauss with and without anti-collapse, and nothing else."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workshop, list[Produced]]:
    shop = Workshop(TINY, tmp_path_factory.mktemp("reproduce"))
    return shop, produce(find_items(NAMES), shop)


def test_two_runs_serve_both_items_and_all_eight_rows(made: tuple[Workshop, list[Produced]]) -> None:
    shop, (ablation, spectrum) = made
    assert len(list(shop.runs.iterdir())) == 2
    (found,) = ablation.found
    assert [len(found.scores(label)) for label in found.outcomes] == [1] * 8
    assert set(spectrum.found[0].cells) == {"AdaGauss", "without anti-collapse"}


def test_a_row_without_changes_is_scored_as_the_run_itself(made: tuple[Workshop, list[Produced]]) -> None:
    shop, _ = made
    job = next(job for job in jobs(find_items(["ablation"]), shop) if job.row.label == "8 AdaGauss")
    assert isinstance(job.cell, Cell)
    again = Job(job.item, job.where, replace(job.row, replay={}), job.seed, job.cell)
    rescore_missing([again], shop, Datasets(shop.options), Reporter())
    scored, result = read_rescored(rescored_file(shop, job.cell, {}), shop), job.cell.result()
    assert isinstance(result, RunResult)
    assert scored.accuracy == pytest.approx(result.details.accuracy)  # type: ignore[union-attr]


def test_tables_are_written_in_every_format_beside_the_papers_numbers(made: tuple[Workshop, list[Produced]]) -> None:
    _, (ablation, _) = made
    tables = {path.suffix: path.read_text(encoding="utf-8") for path in ablation.files if path.stem == "table"}
    assert set(tables) == {".md", ".tex", ".csv"}
    for text in tables.values():
        assert "8 AdaGauss" in text
        assert "46.1" in text
        assert "four digits" in text, "the scale must be said"


def test_the_study_of_an_item_is_drawn_and_its_claim_reads_the_numbers(made: tuple[Workshop, list[Produced]]) -> None:
    _, (_, spectrum) = made
    assert {path.name for path in spectrum.files} >= {"spectrum.png", "spectrum.svg", "spectrum.csv"}
    verdict = spectrum.item.claims[0].check(spectrum.found[0])
    assert verdict.word == "cannot tell"
    assert "one seed" in verdict.reason


def test_a_second_call_runs_nothing(made: tuple[Workshop, list[Produced]], monkeypatch: pytest.MonkeyPatch) -> None:
    shop, _ = made

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was finished")

    monkeypatch.setattr("adagauss.runs.cells.run", never)
    monkeypatch.setattr("adagauss.reproduce.rescoring._rescore", never)
    produce(find_items(["ablation"]), shop)
    needs = overview(find_items(NAMES), shop)
    assert (needs.together.runs, needs.together.finished, needs.together.minutes) == (2, 2, 0)


def test_what_is_finished_is_drawn_without_running_the_rest(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagauss.reproduce.producing.run_missing", lambda *_: pytest.fail("it ran"))
    (made,) = produce(find_items(["batchnorm"]), shop, run=False)
    assert {problem.kind for problem in made.found[0].problems().values()} == {"missing"}
    assert any(path.name == "table.tex" for path in made.files)


def test_an_item_with_no_runs_at_a_scale_has_no_files_and_is_no_error(tmp_path: Path) -> None:
    (produced,) = produce(find_items(["table2"]), Workshop(SCALES["cpu"], tmp_path))
    assert produced.files == []
    assert produced.found == ()


def test_a_page_is_written_from_what_is_there(made: tuple[Workshop, list[Produced]], tmp_path: Path) -> None:
    shop, _ = made
    write_page(find_items([*NAMES, "half"]), shop, tmp_path / "paper.md")
    page = (tmp_path / "paper.md").read_text(encoding="utf-8")
    sections = {part.splitlines()[0]: part for part in page.split("\n## ")}
    assert "*All parts together are best.*" in sections["What each part of AdaGauss brings"]
    assert "**Cannot tell.**" in sections["What each part of AdaGauss brings"], "one seed says nothing"
    assert "*AdaGauss is better than PASS and SSRE.*\n  Not measured yet." in sections["Half of the classes first"]
    assert "DS-AL on frozen" not in sections["All claims"], "what was not measured has no verdict"
    assert "2 of 9 runs are finished" in page, "it says what is missing"
    for ending in ("tex", "csv"):
        assert f"(tables/paper/ablation.{ending})" in sections["What each part of AdaGauss brings"]
        assert "46.1" in (tmp_path / "tables" / "paper" / f"ablation.{ending}").read_text(encoding="utf-8")
    pictures = [line.rpartition("(")[2].rstrip(")") for line in page.splitlines() if line.startswith("![")]
    assert len(pictures) == 2
    assert all((tmp_path / picture).exists() for picture in pictures)


def test_a_failed_run_is_a_value_and_the_rest_goes_on(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = jobs(find_items(["spectrum"]), shop)
    tried = []

    def run(config: object, path: Path, **_: object) -> None:
        tried.append(path)
        if len(tried) == 1:
            raise NumericalError("the loss became NaN: lower the rate")

    monkeypatch.setattr("adagauss.runs.cells.run", run)
    run_missing(distinct(wanted), Datasets(shop.options), Reporter())
    (found,) = findings(wanted, shop)
    assert found.problems()["AdaGauss"] == ("failed", "the loss became NaN: lower the rate")
    assert found.problems()["without anti-collapse"].kind == "missing"
    with ThreadPoolExecutor(1) as executor:
        run_missing(distinct(wanted), Datasets(shop.options), Reporter(), executor)
    assert len(tried) == 4, "what failed is tried again"
    assert findings(wanted, shop)[0].problems()["AdaGauss"].kind == "missing", "it did not fail again"


def test_a_run_that_another_process_works_on_is_left_to_it(shop: Workshop) -> None:
    cells = distinct(jobs(find_items(["confusion"]), shop))
    with RunFolder(cells[0].folder.path).lock():
        run_missing(cells, Datasets(shop.options), Reporter())
    state = cells[0].result()
    assert isinstance(state, Problem)
    assert state.kind == "missing", "it is neither run nor failed"
