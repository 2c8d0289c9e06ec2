"""The paper's items: every row is a valid configuration, runs are shared, and every row is found in the paper."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from adagauss.analysis.studies import studies
from adagauss.core.config import plain
from adagauss.data.dataset import DatasetInfo
from adagauss.errors import ConfigError
from adagauss.experiments.config import make_config
from adagauss.experiments.grid import RunSpec
from adagauss.experiments.paper import SCALES, Published, find_items, items, published
from adagauss.experiments.protocols import protocol
from adagauss.experiments.reproduce import (
    RESCORED,
    ItemResults,
    Problem,
    ReproductionConfig,
    distinct_runs,
    plan,
)
from adagauss.experiments.run import ORIGINS, Run, RunFolder
from adagauss.utils.runtime import RuntimeConfig


def config_at(scale: str) -> ReproductionConfig:
    return ReproductionConfig(SCALES[scale], Path("nowhere"), settings={"backbone.weights": "resnet18.pth"})


@pytest.fixture(scope="module")
def planned() -> dict[str, list[ItemResults]]:
    """Everything at every scale, as if all data were there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatasetInfo, "present", lambda self, root: True)
        return {scale: plan(items().values(), config_at(scale)) for scale in SCALES}


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_is_a_configuration_that_can_be_run(scale: str, planned: dict[str, list[ItemResults]]) -> None:
    for found, one in ((results, one) for results in planned[scale] for one in results.planned):
        if isinstance(one.run, Problem):
            assert "needs the package timm" in one.run.reason, f"{found.item.name}, {one.row.label}"
        else:
            assert (one.rescored is None) == (one.row.rescore is None)


def test_rows_of_several_items_share_one_run(planned: dict[str, list[ItemResults]]) -> None:
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
        one.run
        for results in planned["cpu"]
        for one in results.planned
        if (results.item.name, one.row.label) in rows and results.benchmark.protocol == "cifar100-10" and one.seed == 1
    ]
    assert len(found) == len(rows)
    assert len({spec.name for spec in found if isinstance(spec, RunSpec)}) == 1


def test_one_seed_of_everything_comes_before_the_next(planned: dict[str, list[ItemResults]]) -> None:
    runs = distinct_runs(planned["cpu"])
    seeds = [spec.config.seed for spec in runs]
    assert seeds == sorted(seeds)
    assert len({spec.folder for spec in runs}) == len(runs)
    datasets = [spec.config.stream.dataset for spec in runs if spec.config.seed == 0]
    assert [name for name, _ in groupby(datasets)] == ["cifar100", "tiny"]


def test_a_reproduction_can_change_settings_class_order_preset_and_the_number_of_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DatasetInfo, "present", lambda self, root: True)
    changes: dict[str, Any] = {"settings": {"drift.views": 3}, "stream": {"class_order": 7}, "preset": "paper"}
    changes["runtime"] = RuntimeConfig(precision="bf16-mixed")
    config = ReproductionConfig(SCALES["cpu"], Path("nowhere"), seeds=(0,), first_tasks=3, **changes)
    (found,) = (one for one in plan(find_items(["table1"]), config) if one.benchmark.protocol == "cifar100-10")
    configs = {one.row.label: one.run.config for one in found.planned if isinstance(one.run, RunSpec)}
    adagauss, lwf = configs["AdaGauss"], configs["LwF"]
    assert adagauss.stream == lwf.stream == found.protocol.stream
    assert (adagauss.stream.sizes, adagauss.stream.class_order) == ((2, 2, 2), 7)
    assert (adagauss.preset, plain(adagauss.method)["drift"]["views"]) == ("paper", 3)
    assert lwf.preset != "paper", "a preset applies to the methods that have it"
    command = "adagauss reproduce table1 --scale cpu --seeds 0 --preset paper --first-tasks 3"
    changed = ("stream.class_order=7", "drift.views=3", "runtime.precision=bf16-mixed")
    assert config.command(found.item) == " --set ".join([command, *changed])


def test_only_memory_drift_and_classifier_are_rescored() -> None:
    keys = {key for item in items().values() for row in item.rows for key in row.rescore or {}}
    assert keys
    assert {key.partition(".")[0] for key in keys} <= set(RESCORED)


def test_every_study_of_an_item_exists() -> None:
    assert {item.study for item in items().values() if item.study} <= studies().keys()


def test_every_row_of_a_table_is_found_in_the_paper(planned: dict[str, list[ItemResults]]) -> None:
    for found in planned["paper"]:
        if found.item.tables and "imagenet" not in found.benchmark.protocol:
            for label in found.outcomes:
                assert found.paper_values(label), f"{found.item.name}, {found.protocol.name}, {label}"


def test_the_papers_numbers_are_those_of_the_row(planned: dict[str, list[ItemResults]]) -> None:
    (found,) = (one for one in planned["cpu"] if one.item.name == "ablation")
    accuracies = [found.paper_values(label)["a_last"] for label in found.outcomes]
    assert accuracies == [36.4, 37.6, 41.1, 22.9, 24.6, 42.9, 40.2, 46.1]


def test_items_are_found_by_name_and_number_and_an_unknown_name_gets_a_suggestion() -> None:
    assert [item.name for item in find_items(["fig3", "ablation", "ranks"])] == ["ranks", "ablation"]
    assert find_items(["all"]) == list(items().values())
    numbers = [f"table{number}" for number in range(1, 10)] + [f"fig{number}" for number in range(1, 13)]
    assert all(len(find_items([number])) == 1 for number in numbers), "every table and figure of the paper"
    with pytest.raises(ConfigError, match="did you mean 'ablation'"):
        find_items(["ablations"])


def test_missing_data_is_a_reason_and_not_a_run(tmp_path: Path) -> None:
    config = ReproductionConfig(SCALES["paper"], tmp_path)
    planned = plan(find_items(["table1"]), config)
    reasons = {one.run.reason for found in planned for one in found.planned if isinstance(one.run, Problem)}
    assert any(reason.startswith("ImageNet-Subset") and "is not in " in reason for reason in reasons)
    assert distinct_runs(planned) == []


@pytest.mark.parametrize("name", items())
def test_labels_are_unique_and_benchmarks_and_claims_name_rows(name: str) -> None:
    item = items()[name]
    labels = [row.label for row in item.rows]
    assert len(set(labels)) == len(labels)
    named = {label for places in item.benchmarks.values() for one in places for label in one.only}
    named |= {value.row for claim in item.claims for value in claim.values if value.row is not None}
    assert named <= set(labels)
    for claim in item.claims:
        names = [value.name for value in claim.values]
        assert len(set(names)) == len(names), claim.text


def quoted(path: Path, name: str, method: str = "adagauss", scale: str | None = None, **given: Any) -> Published | None:
    """The paper's numbers for a run on a protocol, or with ``protocol=None`` on its stream alone."""
    chosen = protocol(name, scale)
    config = make_config(method, chosen.stream, **{"protocol": chosen, **given})
    folder = RunFolder(path)
    folder.write_config(plain(config))
    folder.write_json(ORIGINS, dict(config.origins))
    return published(Run(path, config.stream.tasks))


@pytest.mark.parametrize(
    ("name", "method", "numbers"),
    [
        ("cifar100-10", "adagauss", (46.1, 60.2)),
        ("cifar100-half-5", "adagauss", (58.9, 65.7)),
        ("cifar100-10", "sdc", None),
        ("imagenet-subset-10", "adagauss", (51.1, 65.0)),
        ("imagenet-subset-10", "efc", None),  # EFC's subset has other classes
        ("cub-10", "adagauss", None),  # without pretrained weights
    ],
)
def test_the_paper_is_quoted_for_its_own_protocols(
    name: str, method: str, numbers: tuple[float, float] | None, tmp_path: Path
) -> None:
    assert quoted(tmp_path, name, method) == numbers


@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ({"settings": {"classifier.pooled_shrinkage": 0.5}}, None),
        ({"settings": {"backbone.weights": "other.pth"}}, None),
        ({"epochs": 3}, None),
        ({"recipe": {"representation.first.epochs": 3}}, None),
        ({"protocol": None}, None),
        ({"scale": "cpu"}, None),
    ],
)
def test_the_paper_is_not_quoted_for_changed_runs(given: dict[str, Any], numbers: None, tmp_path: Path) -> None:
    assert quoted(tmp_path, "cifar100-10", **given) is numbers


def test_a_protocol_with_pretrained_weights_is_quoted_with_a_weight_file(tmp_path: Path) -> None:
    assert quoted(tmp_path, "cub-10", settings={"backbone.weights": "resnet18.pth"}) is not None
    assert quoted(tmp_path, "cub-10", settings={"backbone.weights": "random"}) is None
