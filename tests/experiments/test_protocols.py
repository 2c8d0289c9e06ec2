"""Protocols, the paper's numbers next to ours, and the tables of a comparison."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from adagauss.analysis import tables
from adagauss.analysis.studies import summary
from adagauss.cli import output
from adagauss.core.config import existing, plain
from adagauss.core.train import Recipe
from adagauss.data.augment import Augmentation
from adagauss.data.dataset import dataset_info, load_dataset
from adagauss.data.stream import StreamConfig, task_sizes
from adagauss.errors import ConfigError, NumericalError
from adagauss.experiments import metrics
from adagauss.experiments.config import SHARED_RECIPE, make_config
from adagauss.experiments.grid import recipe_of, run_grid, shared_recipe
from adagauss.experiments.metrics import Metric
from adagauss.experiments.protocols import PROTOCOLS, SCALES, Protocol, protocol
from adagauss.experiments.run import Run, RunFolder
from adagauss.experiments.runner import make_stream
from adagauss.methods import Method, make_method, methods
from adagauss.utils.runtime import RuntimeConfig
from tests.experiments.runs import SMALL, STREAM

ALL_SCALES = [
    protocol(one.name, scale)
    for one in PROTOCOLS.values()
    for scale in SCALES
    if (scale != "few" or not one.needs_weights) and (scale != "fast" or one.fast)
]


@pytest.mark.parametrize("name", [one.name for one in ALL_SCALES])
def test_every_protocol_names_a_dataset_and_settings_that_exist(name: str) -> None:
    chosen = protocol(name)
    assert dataset_info(chosen.stream.dataset)
    specs = [plain(make_method(method)) for method in ("adagauss", "acil")]
    for preset in (None, "paper", "reference"):
        layers = chosen.layers(preset)
        for layer in layers:
            assert {key for spec in specs for key in existing(spec, layer.settings)} == layer.settings.keys()
        make_method("adagauss", preset, layers=layers)


def test_every_protocol_has_a_cpu_scale_that_is_marked() -> None:
    assert len(PROTOCOLS) == 27
    assert all(chosen.scale == "paper" for chosen in PROTOCOLS.values())
    assert all(protocol(name, "cpu").scale == "cpu" for name in PROTOCOLS)


@pytest.mark.parametrize("chosen", ALL_SCALES, ids=lambda one: one.name)
def test_a_name_with_the_scale_is_an_alias(chosen: Protocol) -> None:
    assert protocol(chosen.name) == chosen
    base, _, scale = chosen.name.rpartition("-")
    if scale in SCALES:
        assert protocol(base, scale) == chosen


@pytest.mark.parametrize(
    ("name", "scale", "message"),
    [
        ("cub-10", "few", "pretrained weights"),
        ("cub-10", "fast", "use --scale cpu, or one of cifar100-10"),
        ("cifar100-10-cpu", "few", "has the scale cpu"),
        ("cifar100-10", "cpus", "did you mean 'cpu'"),
        ("cifar100-1-cpu", None, "cifar100-10"),
        ("cifar100-1O", None, "did you mean 'cifar100-10'"),
    ],
)
def test_an_unknown_protocol_or_scale_is_refused(name: str, scale: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        protocol(name, scale)


def test_few_classes_are_two_in_every_task_but_a_first_half() -> None:
    shapes = {"cifar100-10-few": [2] * 10, "cifar100-20-few": [2] * 20, "tiny-half-5-few": [10, 2, 2, 2, 2, 2]}
    for name, sizes in shapes.items():
        stream = protocol(name).stream
        assert stream.classes is not None
        assert task_sizes(stream.classes, stream.tasks, stream.first) == sizes


def test_with_few_classes_only_adagauss_distils_less() -> None:
    for method in ("adagauss", "lwf", "pass"):
        own, few = (
            resolved(method, name).representation.terms["distillation"] for name in ("cifar100-10", "cifar100-10-few")
        )
        assert (few != own) == (method == "adagauss")


def test_every_benchmark_also_starts_with_half_of_its_classes() -> None:
    whole = {name.rsplit("-", 1)[0] for name in PROTOCOLS if name.endswith("-10")}
    assert {f"{name}-half-{tasks}" for name in whole if "half" not in name for tasks in (5, 10)} <= PROTOCOLS.keys()
    for name in ("tiny-half-5", "tiny-half-5-cpu"):
        stream = protocol(name).stream
        assert stream.first == (stream.classes or 200) // 2
        assert stream.tasks == 6


@pytest.mark.parametrize(("name", "fixed"), [("cifar100-10-cpu", True), ("cub-10-cpu", False)])
def test_class_orders_are_fixed_or_follow_the_seed_as_in_the_paper(name: str, fixed: bool) -> None:
    chosen = protocol(name)
    source = load_dataset("digits")
    stream = chosen.stream.model_copy(update={"tasks": 5, "classes": None})
    first, second = (make_config("frozen", stream, seed=seed) for seed in (0, 1))
    assert first.digest() == second.digest()
    orders = [make_stream(config, source).task_classes for config in (first, second)]
    assert (orders[0] == orders[1]) is fixed


def test_the_published_code_distils_less_on_birds() -> None:
    reference, paper = (resolved("adagauss", "cub-10", preset=preset) for preset in ("reference", "paper"))
    assert reference.representation.terms["distillation"].weight == 0.3
    assert paper.representation.terms["distillation"].weight == 10


def test_a_pretrained_protocol_needs_weights_or_an_explicit_choice() -> None:
    with pytest.raises(ConfigError, match=r"cub-10 starts from ImageNet weights.*backbone.weights=random"):
        protocol("cub-10").check_weights(resolved("adagauss", "cub-10"))
    for settings in ({"backbone.weights": "random"}, {"backbone.name": "efficientnet_lite0"}):
        protocol("cub-10").check_weights(make_method("adagauss", settings=settings))
    for name in ("cub-10-cpu", "cifar100-10"):
        protocol(name).check_weights(resolved("adagauss", name))


@pytest.mark.parametrize("name", [name for name in sorted(methods()) if make_method(name).trains])
def test_the_shared_recipe_reaches_every_method_that_trains(name: str) -> None:
    recipe = shared_recipe(make_method(name))
    config = make_config(name, StreamConfig(dataset="cifar100"), recipe=recipe)
    part = config.method.representation
    assert part.first == Recipe(learning_rate=0.1, clip_norm=1.0)
    assert part.later in (None, Recipe(learning_rate=0.05, clip_norm=1.0))
    assert config.method.augmentation == Augmentation()
    assert getattr(part.label_augmentation, "when", "always") == "always", "the first task is the same for all methods"


def resolved(method: str, name: str, recipe: str = "own", preset: str | None = None) -> Method:
    chosen = protocol(name)
    return make_config(method, chosen.stream, preset=preset, protocol=chosen, recipe=recipe_of(method, recipe)).method


def test_what_a_method_is_made_of_survives_every_protocol_whose_backbone_learns() -> None:
    for name in (one.name for one in ALL_SCALES):
        for method, kind in (("pass", "rotations"), ("il2a", "mixtures")):
            found = resolved(method, name)
            fixed = found.backbone.train_blocks == "none"
            assert found.representation.label_augmentation.kind == ("none" if fixed else kind)


@pytest.mark.parametrize("recipe", ["shared", "short"])
@pytest.mark.parametrize("name", ["cifar100-10-cpu", "cifar100-10-few", "cub-10", "cub-20-cpu"])
def test_a_shared_recipe_is_the_same_for_every_method_in_every_protocol(name: str, recipe: str) -> None:
    parts = [resolved(method, name, recipe).representation for method in methods()]
    assert len({part.first.model_dump_json() for part in parts if part.first is not None}) == 1
    assert len({part.later.model_dump_json() for part in parts if part.later is not None}) == 1


@pytest.mark.parametrize("name", ["cub-5-cpu", "cub-20-cpu", "aircraft-10-cpu", "cars-half-5-cpu"])
def test_fine_grained_methods_share_cached_features_of_one_input_size_at_the_cpu_scale(name: str) -> None:
    for method in ("adagauss", "adagauss+", "fecam", "efc", "fetril", "dsal", "lwf", "ldc", "pass"):
        found = resolved(method, name)
        assert (found.backbone.train_blocks, found.backbone.input_size) == ("none", None)
        assert found.augmentation.only_flips
        assert found.representation.label_augmentation.copies(True) == 1
        assert found.backbone.features in (128, None)


def test_methods_keep_their_own_batch_size_at_the_papers_scale() -> None:
    later = resolved("efc", "cifar100-10").representation.later
    assert later is not None
    assert later.batch_size == 64


def test_what_the_authors_set_on_a_dataset_overrides_settings_of_the_dataset() -> None:
    assert dataset_info("tiny").settings == {"augmentation.crop_padding": 8}
    assert resolved("il2a", "tiny-10").augmentation.crop_padding == 0
    assert resolved("efc", "tiny-10").augmentation.crop_padding == 8
    assert plain(resolved("dpcr", "tiny-10").classifier)["gamma"] == 2000
    assert plain(resolved("dpcr", "cifar100-10").classifier)["gamma"] == 200
    first = resolved("pass", "imagenet-subset-10").representation.first
    assert first is not None
    assert first.optimizer == "sgd"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Run]]]:
    out = tmp_path_factory.mktemp("grid")
    return out, _run_grid(out)


def _run_grid(out: Path) -> dict[str, list[Run]]:
    return run_grid("joint,finetune,frozen", [0, 1], STREAM, out, epochs=2, settings=SMALL).results


def test_joint_training_is_the_upper_bound_and_fine_tuning_forgets(
    grid: tuple[Path, dict[str, list[Run]]],
) -> None:
    _, results = grid
    last = {name: metrics.mean([run.metrics["a_last"] for run in runs]) for name, runs in results.items()}
    assert last["joint"] > max(last["finetune"], last["frozen"])
    assert all(run.matrix[1][0] < 0.1 for run in results["finetune"])


def test_a_grid_is_not_run_twice(grid: tuple[Path, dict[str, list[Run]]]) -> None:
    out, results = grid
    before = {path: path.stat().st_mtime_ns for path in out.rglob("learner.safetensors")}
    again = _run_grid(out)
    assert [[run.path for run in runs] for runs in again.values()] == [
        [run.path for run in runs] for runs in results.values()
    ]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("learner.safetensors")} == before


def test_tables_hold_every_method_once(grid: tuple[Path, dict[str, list[Run]]]) -> None:
    _, results = grid
    rows = tables.comparison_rows(results)
    assert rows[0]["method"] == "joint"
    assert {row["recipe of"] for row in rows} == {"ours"}
    for written in tables.FORMATS.values():
        text = written(rows, "")
        assert all(text.count(name) == 1 for name in results)


def test_tables_name_whose_recipe_a_run_has() -> None:
    origins = {"representation.first.learning_rate": "method"}
    assert tables.whose_recipe(cast(Run, SimpleNamespace(method="pass", origins=origins))) == "authors"
    shared = {"representation.first.learning_rate": SHARED_RECIPE}
    assert tables.whose_recipe(cast(Run, SimpleNamespace(method="pass", origins=shared))) == "all methods"


def test_every_table_and_figure_says_that_it_is_at_cpu_scale(
    grid: tuple[Path, dict[str, list[Run]]], capsys: pytest.CaptureFixture[str]
) -> None:
    run = grid[1]["finetune"][0]
    small = run.with_tables({})
    vars(small)["config"] = run.config.with_changes(scale="cpu")
    results = {"finetune": [small]}
    rows = tables.comparison_rows(results)
    for written in tables.FORMATS.values():
        assert "CPU scale" in written(rows, tables.comparison_caption(results))
    output.show_results(results)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("CPU scale") == 2
    assert "CPU scale" in summary(results)


def test_csv_survives_quotes_commas_and_lines() -> None:
    row = {"name": 'a "b", c\nd', "value": "1,5"}
    assert list(csv.DictReader(io.StringIO(tables.comma_separated([row])))) == [row]


def test_markdown_pipes_and_lines_do_not_break_the_table() -> None:
    *_, last = tables.markdown([{"na|me": "a|b\nc", "value": "1"}]).splitlines()
    assert last == r"| a\|b c | 1 |"


def test_a_new_metric_is_one_entry(
    grid: tuple[Path, dict[str, list[Run]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = Metric("tasks", "number of tasks", lambda evaluations: float(len(evaluations)), percent=False)
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, tasks))
    out, results = grid
    evaluations = [RunFolder(next(out.glob("joint-*"))).evaluation(index)[0] for index in range(2)]
    with_it = results["joint"][0].with_tables({})
    vars(with_it)["metrics"] = metrics.summary(evaluations)
    (row,) = tables.comparison_rows({"joint": [with_it]})
    assert row["number of tasks"] == "2.0"
    output.show_results({"joint": [with_it]})
    assert "2.0" in capsys.readouterr().out


def test_latex_signs_in_names_are_escaped() -> None:
    assert r"a\_b\&c\$" in tables.latex([{"name": "a_b&c$"}])


def test_latex_marks_the_best_and_the_second_of_each_metric() -> None:
    scores = [("a", "40.0 ± 1.0", "9.0"), ("b", "50.5 ± 0.2", "3.0"), ("c", "–", "5.0")]
    written = tables.latex([{"method": name, "A_last": last, "forgetting": less} for name, last, less in scores])
    assert r"method & $A_\mathrm{last}$ & forgetting \\" in written
    assert r"a & \underline{40.0} {\scriptsize$\pm$1.0} & 9.0 \\" in written
    assert r"b & \textbf{50.5} {\scriptsize$\pm$0.2} & \textbf{3.0} \\" in written
    assert r"c & – & \underline{5.0} \\" in written


def test_latex_has_one_row_per_method_and_a_pair_of_columns_per_benchmark() -> None:
    rows = [
        {"benchmark": name, "row": row, "seeds": "3", "A_last": "1.0", "paper A_last": "2.0", "A_inc": "3.0"}
        for name in ("cifar100-10", "tiny-10")
        for row in ("EFC", "AdaGauss")
    ]
    written = tables.latex(rows, "from here")
    assert written.startswith("% from here\n")
    assert r" & \multicolumn{2}{c}{cifar100-10} & \multicolumn{2}{c}{tiny-10} \\" in written
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in written
    assert r"EFC & 1.0 & 3.0 & 1.0 & 3.0 \\" in written
    assert "2.0" not in written


def test_a_method_that_cannot_run_does_not_end_the_grid(tmp_path: Path) -> None:
    settings = {"representation.later.learning_rate": 1e30, "representation.later.clip_norm": None}
    grid = run_grid("finetune,frozen", [0], STREAM, tmp_path, epochs=1, settings=settings)
    assert list(grid.results) == ["frozen"]
    assert "lower the learning rate" in grid.failures["finetune"]
    with pytest.raises(NumericalError):
        run_grid("finetune", [0], STREAM, tmp_path, epochs=1, settings=settings)


@pytest.mark.parametrize("name", ["cifar100-10", "cub-10"])
def test_missing_weights_are_an_error_before_the_images_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adagauss.experiments.grid.read_dataset", lambda *_: pytest.fail("the images were read"))
    chosen, settings = protocol(name), {"backbone.weights": str(tmp_path / "none.pth")}
    with pytest.raises(ConfigError, match=r"none\.pth does not exist"):
        run_grid("adagauss,lwf", [0], chosen.stream, tmp_path, protocol=chosen, settings=settings)
    with pytest.raises(ConfigError, match="starts from ImageNet weights"):
        run_grid("lwf", [0], protocol("cub-10").stream, tmp_path, protocol=protocol("cub-10"))


def test_an_unknown_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recipe"):
        run_grid("finetune", [0], StreamConfig(dataset="digits"), tmp_path, recipe="mine")


def test_a_scale_chooses_the_precision_unless_the_user_does() -> None:
    chosen = protocol("cifar100-10", "fast")
    given = [None, RuntimeConfig.of({"device": "cpu"}), RuntimeConfig.of({"precision": "32-true"})]
    found = [make_config("adagauss", chosen.stream, runtime=one, protocol=chosen).runtime for one in given]
    assert [one.precision for one in found] == ["auto", "auto", "32-true"]
    assert found[1].device == "cpu"
