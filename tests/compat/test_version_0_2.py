"""Files written by version 0.2.0 are read, and give the predictions that they gave then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tests.contracts.toy  # registers the backbone of the stored learners
from adagauss import IncrementalClassifier, cli
from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages

FILES = Path(__file__).parent.parent / "fixtures" / "v0_2"
REMOVED = {"circle", "adagauss-still"}
"""Methods that only version 0.2.0 has."""
LEARNERS = sorted(path.stem for path in (FILES / "learners").iterdir())

assert tests.contracts.toy.NAMES


@pytest.mark.parametrize("name", [name for name in LEARNERS if name not in REMOVED])
def test_a_learner_is_read_and_scores_as_then(name: str) -> None:
    stored = load_file(FILES / "scores.safetensors")
    learner = Learner.load(FILES / "learners" / f"{name}.safetensors")
    assert learner.classes == ["zero", "one", "two", "three"]
    scores = learner.scores(learner.features(ArrayImages(stored["pixels"]))).double()
    expected = stored[name.replace("plus", "+")]
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_a_classifier_predicts_as_then() -> None:
    stored = np.load(FILES / "classifier_predictions.npz")
    classifier = IncrementalClassifier.load(FILES / "classifier.safetensors")
    assert list(classifier.predict(stored["images"])) == list(stored["labels"])
    np.testing.assert_allclose(classifier.predict_proba(stored["images"]), stored["proba"], atol=1e-5)


def test_a_run_folder_is_shown_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(FILES / "run", tmp_path / "run")
    command(monkeypatch, "info", str(folder))
    assert "adagauss" in capsys.readouterr().out.lower()
    stored = json.loads((folder / "metrics.json").read_text())["metrics"]
    shutil.rmtree(folder / "tasks" / "02")
    (folder / "metrics.json").unlink()
    command(monkeypatch, "run", "--out", str(folder), "--resume", "--quiet")
    again = json.loads((folder / "metrics.json").read_text())["metrics"]
    for name, value in stored.items():
        assert again[name] == pytest.approx(value, abs=0.05), name


def command(patch: pytest.MonkeyPatch, *words: str) -> None:
    """Run a command in this process."""
    patch.setattr("sys.argv", ["adagauss", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
