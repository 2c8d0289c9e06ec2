"""Run folders: resume after a real kill, locks, damaged files, and the oracle of an uninterrupted run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from adagauss.benchmark import RunConfig, RunFolder, make_config, run
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.errors import CheckpointError

SETTINGS = {
    "representation.first.epochs": 4,
    "representation.later.epochs": 4,
    "drift.recipe.epochs": 4,
    "drift.samples": 200,
    "drift.views": 1,
}

CHILD = """
import sys
from adagauss.benchmark import folder
from adagauss.cli import main
folder.SNAPSHOT_SECONDS = 0.0
folder.FileSnapshots.__init__.__defaults__ = (0.0,)
main()
"""


def quick_config(method: str = "adagauss", **changes: Any) -> RunConfig:
    stream = StreamConfig(dataset="digits", sizes=(2, 2, 1), classes=5)
    settings = SETTINGS if method == "adagauss" else {k: v for k, v in SETTINGS.items() if k.startswith("repr")}
    return make_config(method, stream, load_dataset("digits"), settings={**settings, **changes})


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in ("seconds", "images_per_second")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(quick_config(), tmp_path_factory.mktemp("runs") / "whole")


def test_metrics_name_protocol_and_configuration(uninterrupted: dict[str, Any]) -> None:
    assert uninterrupted["protocol"]["tasks"] == [2, 2, 1]
    assert uninterrupted["config"] == quick_config().digest()
    assert len(uninterrupted["accuracy_matrix"]) == 3


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_a_killed_run_resumes_to_the_same_numbers(finished: int, tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """SIGKILL in the middle of the training of a task, with snapshots written after every epoch."""
    out = tmp_path / "killed"
    folder = RunFolder(out)
    folder.path.mkdir()
    folder.write_config(_plain(quick_config()))
    command = [sys.executable, "-c", CHILD, "run", "--out", str(out), "--resume", "--quiet"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    snapshot = out / "snapshot.safetensors"
    while child.poll() is None and not (folder.finished_tasks() == finished and snapshot.exists()):
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert folder.finished_tasks() < 3, "the child finished before it could be killed"
    assert comparable(run(quick_config(), out, resume=True)) == comparable(uninterrupted)


def _plain(config: RunConfig) -> dict[str, Any]:
    from adagauss.config import plain

    data: dict[str, Any] = json.loads(json.dumps(plain(config)))
    return data


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    run(quick_config("finetune"), tmp_path)
    with pytest.raises(CheckpointError, match="holds a run already"):
        run(quick_config("finetune"), tmp_path)


def test_resuming_with_other_settings_names_the_difference(tmp_path: Path) -> None:
    run(quick_config("finetune"), tmp_path)
    changed = quick_config("finetune", **{"representation.first.learning_rate": 0.2})
    with pytest.raises(CheckpointError, match=r"representation\.first\.learning_rate: 0\.1 there, 0\.2 now"):
        run(changed, tmp_path, resume=True)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with RunFolder(tmp_path).lock(), pytest.raises(CheckpointError, match="in use by another process"):
        run(quick_config("finetune"), tmp_path)


def test_a_damaged_snapshot_only_costs_time(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    (tmp_path / "snapshot.safetensors").write_bytes(b"not a snapshot")
    assert comparable(run(quick_config(), tmp_path)) == comparable(uninterrupted)


def test_a_truncated_checkpoint_is_refused_with_the_way_out(tmp_path: Path) -> None:
    run(quick_config("finetune"), tmp_path)
    folder = RunFolder(tmp_path)
    (folder.task(2) / "evaluation.safetensors").unlink()
    checkpoint = folder.checkpoint(1)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        run(quick_config("finetune"), tmp_path, resume=True)
