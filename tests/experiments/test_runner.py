"""Run folders: resume after a real kill, locks and damaged files."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from torch import Tensor

from adagauss import cli
from adagauss.core.config import plain
from adagauss.core.learn import Learner
from adagauss.core.state import State
from adagauss.data.dataset import load_dataset
from adagauss.data.images import Images
from adagauss.errors import CheckpointError, NumericalError
from adagauss.experiments.metrics import METRICS
from adagauss.experiments.run import FileSnapshots, Run, RunFolder, open_runs
from adagauss.experiments.runner import make_stream, run
from adagauss.parts.representation import Step
from adagauss.parts.terms import AntiCollapse
from adagauss.utils.checkpoint import load_tensors
from tests.experiments.runs import comparable, metrics_of, quick_config
from tests.processes import started


def resume_with_snapshots(path: Path) -> None:
    """`adagauss run --resume`, with a snapshot after every epoch."""
    FileSnapshots.__init__.__defaults__ = (0.0,)
    sys.argv = ["adagauss", "run", "--out", str(path), "--resume", "--quiet"]
    cli.main()


def test_metrics_name_protocol_and_configuration(adagauss_run: Path) -> None:
    result = Run.open(adagauss_run)
    assert result.sizes == (2, 2, 1)
    assert result.digest == quick_config().digest()
    assert len(result.matrix) == 3
    assert result.metrics.keys() == {metric.name for metric in METRICS}


@pytest.mark.parametrize("text", ["{", "[]", '{"protocol": {"classes": [[1], 2]}}', None])
def test_a_run_is_read_without_its_metrics_file(text: str | None, adagauss_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    copytree(adagauss_run, path)
    (path / "metrics.json").unlink()
    if text is not None:
        (path / "metrics.json").write_text(text, encoding="utf-8")
    assert comparable(Run.open(path)) == metrics_of(adagauss_run)


def test_stored_metrics_are_those_of_the_run(adagauss_run: Path) -> None:
    stored = json.loads((adagauss_run / "metrics.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(Run.open(adagauss_run).stored_metrics()))


def test_folders_that_hold_no_run_are_skipped_with_the_reason(adagauss_run: Path, tmp_path: Path) -> None:
    runs, skipped = open_runs([adagauss_run, tmp_path])
    assert [run.path for run in runs] == [adagauss_run]
    assert list(skipped) == [tmp_path]
    assert "no config.yaml" in skipped[tmp_path]
    with pytest.raises(CheckpointError, match=r"no config\.yaml"):
        open_runs([adagauss_run, tmp_path], strict=True)


MOMENTS = (
    "snapshots/task-1-training.safetensors",
    "tasks/01/learner.safetensors",
    "tasks/01/evaluation.safetensors",
    "snapshots/task-2-training.safetensors",
    "snapshots/task-2-adapter.safetensors",
    "tasks/02/learner.safetensors",
    "snapshots/task-3-training.safetensors",
)
"""Within a training, within an adapter's, and between tasks."""


@pytest.mark.nightly
def test_a_run_killed_again_and_again_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    lengths: dict[str, Any] = dict.fromkeys(
        ("representation.first.epochs", "representation.later.epochs", "drift.recipe.epochs"), 8
    )
    config = quick_config(**lengths)
    whole = run(config, tmp_path / "whole")
    folder = RunFolder(tmp_path / "killed")
    folder.path.mkdir()
    folder.write_config(json.loads(json.dumps(plain(config))))
    for moment in MOMENTS:
        child = started(resume_with_snapshots, folder.path)
        while child.is_alive() and not (folder.path / moment).exists():
            time.sleep(0.001)
        child.kill()
        child.join()
        assert (folder.path / moment).exists(), f"the child ended before {moment}"
        assert folder.finished_tasks() < 3, "the child finished before it could be killed"
    assert comparable(run(config, folder.path, resume=True)) == comparable(whole)
    mine, theirs = (load_tensors(one.checkpoint(2), "learner")[0] for one in (folder, whole))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_finished_run_is_not_overwritten(finished: Path) -> None:
    with pytest.raises(CheckpointError, match="already holds a run"):
        run(quick_config("finetune"), finished)


def test_resuming_with_other_settings_names_the_difference(finished: Path) -> None:
    changed = quick_config("finetune", **{"representation.first.learning_rate": 0.2})
    with pytest.raises(CheckpointError, match=r"representation\.first\.learning_rate: 0\.1 there, 0\.2 now"):
        run(changed, finished, resume=True)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path).lock(), pytest.raises(CheckpointError, match="in use by another process"):
        run(quick_config("finetune"), tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="a link needs special rights on Windows")
def test_a_link_in_the_place_of_the_lock_leaves_its_target_alone(tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_text("years of work", encoding="utf-8")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(target)
    with pytest.raises(CheckpointError, match="cannot be a run folder"), RunFolder(tmp_path / "run").lock():
        pass
    assert target.read_text(encoding="utf-8") == "years of work"


def test_a_damaged_snapshot_only_costs_time(tmp_path: Path, adagauss_run: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "task-1-training.safetensors").write_bytes(b"not a snapshot")
    assert comparable(run(quick_config(), tmp_path)) == metrics_of(adagauss_run)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(CheckpointError, match="choose another"):
        run(quick_config("finetune"), tmp_path / "file")


def test_a_run_of_an_older_release_says_which_one_to_use(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("method_name: adagauss\nmethod: {expansion: 3}\n", encoding="utf-8")
    (tmp_path / "environment.json").write_text('{"adagauss": "0.1.0"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"started with adagauss 0\.1\.0.*start a new run"):
        RunFolder(tmp_path).config  # noqa: B018


def test_test_images_pass_once_through_a_backbone_that_never_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {
        "backbone.train_blocks": "none",
        "augmentation.crop_padding": 0,
        "augmentation.policy": "none",
    }
    config = quick_config("adagauss", **settings)
    seen, features = [0], Learner.features

    def count(self: Learner, images: Images, bottleneck: bool = True) -> Tensor:
        seen[0] += len(images)
        return features(self, images, bottleneck)

    monkeypatch.setattr(Learner, "features", count)
    last = run(config, tmp_path / "run").evaluations[-1]
    assert seen[0] == len(last.true)
    learner = Learner.load(RunFolder(tmp_path / "run").checkpoint(2))
    stream = make_stream(config, load_dataset("digits"))
    found = [learner.scores(features(learner, stream[task].test.images)) for task in range(3)]
    assert torch.equal(torch.cat(found).argmax(1), last.predicted)


def test_a_term_that_returns_nan_is_named_and_the_run_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = AntiCollapse.loss

    def nan_in_the_second_task(self: AntiCollapse, step: Step, before: State | None = None) -> Tensor:
        return loss(self, step) * (1 if step.now.first else torch.nan)

    with monkeypatch.context() as patch:
        patch.setattr(AntiCollapse, "loss", nan_in_the_second_task)
        with pytest.raises(
            NumericalError, match=r"task 2: training: the loss 'anti_collapse' is not finite in epoch 1"
        ):
            run(quick_config(), tmp_path)
    assert Run.open(tmp_path).done == 1
    assert run(quick_config(), tmp_path, resume=True).done == 3
