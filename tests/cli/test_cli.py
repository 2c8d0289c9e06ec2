"""Commands as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from adagauss.errors import ConfigError
from tests.cli.conftest import Command, Outcome


@pytest.fixture
def run_folder(digits_run: tuple[Path, Outcome]) -> Path:
    return digits_run[0]


def test_help_imports_no_torch() -> None:
    program = "import adagauss.cli, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_run_writes_metrics_and_configuration(run_folder: Path) -> None:
    for name in ("config.yaml", "origins.json", "environment.json", "metrics.json", "tasks/02/learner.safetensors"):
        assert (run_folder / name).exists()


def test_resume_of_a_finished_run_needs_no_other_option(adagauss: Command, run_folder: Path) -> None:
    result = adagauss("run", "--out", run_folder, "--resume", "--quiet")
    assert result.code == 0, result.err
    assert "A_last" in result.out


def test_predict_takes_a_run(adagauss: Command, run_folder: Path, tmp_path: Path) -> None:
    digits = load_digits()
    for index in range(3):
        Image.fromarray((digits.images[index] * 15.9).astype(np.uint8)).save(tmp_path / f"{index}.png")
    result = adagauss("predict", run_folder, tmp_path, "--top", "2", "--csv")
    assert result.code == 0, result.err
    lines = [line.split(",") for line in result.out.splitlines()[1:]]
    assert [Path(line[0]).name for line in lines] == ["0.png", "1.png", "2.png"]
    assert all(len(line) == 5 and float(line[2]) >= float(line[4]) for line in lines)


def test_info_shows_what_is_stored(adagauss: Command, run_folder: Path) -> None:
    result = adagauss("info", run_folder)
    assert "method   adagauss: memory" in result.out
    assert result.code == 0, result.err
    assert "4 classes, taught in 2 tasks" in result.out
    assert f"{(16 + 16 * 17 // 2) * 8:,} bytes" in result.out


def test_settings_are_shown_with_the_layer_they_came_from(adagauss: Command, run_folder: Path) -> None:
    ran = dict(_two_columns(adagauss("info", run_folder, "--settings").out))
    assert ran["drift.samples=200"] == "settings"
    assert ran["representation.later.epochs=2"] == "epochs"
    assert ran["augmentation.flip=false"] == "mirroring harms"
    assert ran["backbone.name=convnet"] == "dataset digits"
    listed = dict(_two_columns(adagauss("list", "methods", "adagauss", "--protocol", "cub-10").out))
    assert listed["backbone.features=32"] == "protocol cub-10"
    refused = adagauss("list", "methods", "--protocol", "cub-10")
    assert refused.code == 2
    assert "name it" in refused.err


def test_settings_fit_a_narrow_terminal(adagauss: Command) -> None:
    shown = adagauss("list", "methods", "adagauss", "--protocol", "imagenet-subset-half-10-cpu", columns=80).out
    assert "imagenet-subset-half-10-cpu" in shown
    assert max(map(len, shown.splitlines())) <= 80


def _two_columns(table: str) -> list[tuple[str, str]]:
    rows = [line.strip().split("  ", 1) for line in table.splitlines()]
    return [(row[0], row[1].strip()) for row in rows if len(row) == 2]


def test_rescore_shows_the_run_and_the_changed_parts(adagauss: Command, run_folder: Path) -> None:
    result = adagauss(
        "rescore", run_folder, "--set", "drift.kind=affine", "--set", "classifier.pooled_shrinkage=0.5", "--quiet"
    )
    assert result.code == 0, result.err
    rows = {line.split()[0]: line for line in result.out.splitlines()[2:]}
    assert list(rows) == ["none", "as", "changed", "oracle"]
    accuracy = json.loads((run_folder / "metrics.json").read_text(encoding="utf-8"))["details"]["accuracy"]
    assert f"{100 * accuracy[-1]:.1f} / {50 * sum(accuracy):.1f}" in rows["as"]
    refused = adagauss("rescore", run_folder, "--set", "backbone.name=resnet18")
    assert refused.code == 2
    assert "only memory, drift and classifier" in refused.said


def test_rescore_takes_the_parts_of_another_method(adagauss: Command, run_folder: Path) -> None:
    plus = ["--set", "drift.kind=affine", "--set", "drift.views=4", "--set", "drift.residual_covariance=1"]
    plus += ["--set", "classifier.pooled_shrinkage=0.5"]
    plus += ["--set", "classifier.log_det=true", "--set", "classifier.shrinkage=0"]
    plus += ["--set", "classifier.correlation=false", "--set", "classifier.normalize=false"]
    by_name = adagauss("rescore", run_folder, "--parts-from", "adagauss+", "--quiet")
    assert by_name.code == 0, by_name.err
    assert by_name.out == adagauss("rescore", run_folder, *plus, "--quiet").out


def test_methods_and_datasets_list_what_there_is(adagauss: Command) -> None:
    assert "finetune" in adagauss("list", "methods").out
    assert "drift.network" in adagauss("list", "methods", "adagauss").out
    assert "50+10" in adagauss("list", "protocols").out
    assert "timm:NAME" in adagauss("list", "backbones").out
    assert "digits" in adagauss("list", "datasets").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--method", "adagaus"], "did you mean 'adagauss'"),
        (["run", "--dataset", "digit"], "did you mean 'digits'"),
        (["run", "--set", "drift.netwrk=mlp"], "did you mean 'drift.network'"),
        (["run", "--set", "classifier.pooled_shrinkage=3"], "classifier.pooled_shrinkage"),
        (["run", "--set", "classifier"], "KEY=VALUE"),
        (["run", "--preset", "papr"], "did you mean 'paper'"),
        (["run", "--tasks", "11"], "only 10 classes"),
        (["run", "--device", "cuda:7"], "device=cpu"),
        (["run", "--set", "stream.class_order=icral"], "did you mean 'icarl'"),
        (["run", "--tasks", "five"], "--tasks takes numbers"),
        (["run", "--scale", "cpu"], "name it with --protocol"),
        (["compare", "--seeds", "0,-1"], "--seeds takes numbers"),
        (["run", "--protocol", "cifar100-10", "--set", "stream.classes=4"], "give only one"),
        (["run", "--set", "backbone.train_blocks=last:99"], "use all, or fewer"),
        (["predict", "nowhere", "x.png"], "there is no model nowhere: `adagauss teach NAME.safetensors FOLDER`"),
        (["info", "."], "not a run folder"),
        (["rescore", "nowhere"], "not a run folder"),
    ],
)
def test_a_user_error_is_one_message_and_exit_code_2(
    adagauss: Command, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = adagauss(*words)
    assert result.code == 2
    assert message in result.said
    assert "Traceback" not in result.err


def test_only_debug_raises_the_error_with_its_traceback(adagauss: Command) -> None:
    mistake = ["list", "methods", "--preset", "paper"]
    plain = adagauss(*mistake)
    assert (plain.code, plain.out) == (2, "")
    assert plain.err.startswith("adagauss: settings are shown for one method only")
    with pytest.raises(ConfigError):
        adagauss("--debug", *mistake)
