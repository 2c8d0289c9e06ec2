"""Every table and figure can be said: settings, shared runs, studies and the paper's rows."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from adagauss.reproduce import Workshop
from adagauss.reproduce.cells import distinct
from adagauss.reproduce.findings import findings
from adagauss.reproduce.rescoring import REPLAYED

from adagauss.analysis.studies.base import studies
from adagauss.data.dataset import DatasetInfo
from adagauss.errors import ConfigError
from adagauss.experiments.paper import ITEMS, SCALES, find_items
from adagauss.experiments.reproduce import Problem, rescored_file
from adagauss.runs.cells import Cell
from adagauss.serve.jobs import Job
from adagauss.serve.reading import jobs

NOWHERE = Path("nowhere")


def workshop(scale: str) -> Workshop:
    return Workshop(SCALES[scale], NOWHERE, weights=Path("resnet18.pth"))


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[Job]]:
    """Everything at every scale, as if all data were there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatasetInfo, "present", lambda self, root: True)
        return {scale: jobs(ITEMS.values(), workshop(scale)) for scale in SCALES}


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_is_a_configuration_that_can_be_run(scale: str, wanted: dict[str, list[Job]]) -> None:
    shop = workshop(scale)
    for job in wanted[scale]:
        if isinstance(job.cell, Problem):
            assert "needs the package timm" in job.cell.reason, f"{job.item.name}, {job.row.label}"
        elif job.row.replay is not None and job.seed == 0:
            rescored_file(shop, job.cell, job.row.replay)


def test_rows_of_several_items_share_one_run(wanted: dict[str, list[Job]]) -> None:
    rows = {
        ("table1", "AdaGauss"),
        ("ablation", "8 AdaGauss"),
        ("ablation", "3 Bayes, diagonal covariances"),
        ("batchnorm", "normal"),
        ("distillation", "projected distillation"),
        ("beta", "β = 1"),
        ("shift", "AdaGauss"),
    }
    found = [
        job.cell
        for job in wanted["cpu"]
        if (job.item.name, job.row.label) in rows and job.where.protocol == "cifar100-10" and job.seed == 1
    ]
    assert len(found) == len(rows)
    assert len({cell.name for cell in found if isinstance(cell, Cell)}) == 1


def test_one_seed_of_everything_comes_before_the_next(wanted: dict[str, list[Job]]) -> None:
    cells = distinct(wanted["cpu"])
    seeds = [cell.config.seed for cell in cells]
    assert seeds == sorted(seeds)
    assert len({cell.folder.path for cell in cells}) == len(cells)
    ofs = [cell.config.stream.dataset for cell in cells if cell.config.seed == 0]
    assert [name for name, _ in groupby(ofs)] == ["cifar100", "tiny"]


def test_only_memory_drift_and_classifier_are_rescored() -> None:
    keys = {key for item in ITEMS.values() for row in item.rows for key in row.replay or {}}
    assert keys
    assert {key.partition(".")[0] for key in keys} <= set(REPLAYED)


def test_every_study_of_an_item_exists() -> None:
    assert {item.study for item in ITEMS.values() if item.study} <= studies().keys()


def test_every_row_of_a_table_is_found_in_the_papers(wanted: dict[str, list[Job]]) -> None:
    tables = [job for job in wanted["paper"] if job.item.table and "imagenet" not in job.where.protocol]
    for found in findings(tables, workshop("paper")):
        for label in found.outcomes:
            assert found.quoted(label) is not None, f"{found.item.name}, {found.benchmark}, {label}"


def test_the_printed_numbers_are_those_of_the_row(wanted: dict[str, list[Job]]) -> None:
    (found,) = findings([job for job in wanted["cpu"] if job.item.name == "ablation"], workshop("cpu"))
    printed = [found.printed(label, "a_last") for label in found.outcomes]
    assert printed == [36.4, 37.6, 41.1, 22.9, 24.6, 42.9, 40.2, 46.1]


def test_items_are_found_by_name_and_number_and_otherwise_the_nearest_is_named() -> None:
    assert [item.name for item in find_items(["fig3", "ablation", "ranks"])] == ["ranks", "ablation"]
    assert find_items(["all"]) == list(ITEMS.values())
    with pytest.raises(ConfigError, match="did you mean 'ablation'"):
        find_items(["ablations"])


def test_what_is_not_at_hand_is_a_sentence_and_not_a_run(tmp_path: Path) -> None:
    shop = Workshop(SCALES["paper"], tmp_path)
    reasons = {job.cell.reason for job in jobs(find_items(["table1"]), shop) if isinstance(job.cell, Problem)}
    assert any("ImageNet-Subset" in reason and "is not at hand" in reason for reason in reasons)
    assert distinct(jobs(find_items(["table1"]), shop)) == []


@pytest.mark.parametrize("name", ITEMS)
def test_labels_are_unique_and_those_of_a_benchmark_are_rows(name: str) -> None:
    labels = [row.label for row in ITEMS[name].rows]
    assert len(set(labels)) == len(labels)
    for places in ITEMS[name].where.values():
        assert {label for where in places for label in where.only} <= set(labels)
