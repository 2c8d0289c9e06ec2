"""What a run folder keeps of images beside the learner: statistics, and nothing of single images unless asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from adagauss.analysis.figures import write_figures
from adagauss.cli import app
from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import Diagnostics, make_config
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import run
from adagauss.utils.checkpoint import load_tensors

SETTINGS = {"backbone.name": "convnet", "representation.first.epochs": 1}


@pytest.mark.parametrize("diagnostics", ["none", "last", "every", "features"])
def test_no_file_of_a_run_holds_the_feature_of_an_image_unless_asked_for(
    diagnostics: Diagnostics, tmp_path: Path
) -> None:
    stream = StreamConfig(dataset="digits", sizes=(2, 1), classes=3)
    run(make_config("fecam", stream, settings=SETTINGS, diagnostics=diagnostics), tmp_path)
    folder, digits = RunFolder(tmp_path), load_dataset("digits")
    learner = Learner.load(folder.last_checkpoint())
    images = [part.of_classes([0, 1, 2]).images for part in (digits.train, digits.test)]
    features = torch.cat([learner.features(part) for part in images]).double()
    found = 0
    for file in tmp_path.rglob("*.safetensors"):
        tensors, _ = load_tensors(file, file.name.partition(".")[0])
        for tensor in tensors.values():
            if tensor.is_floating_point() and tensor.ndim == 2 and tensor.shape[1] == features.shape[1]:
                found += int((torch.cdist(tensor.double(), features) < 1e-5).any(1).sum())
    assert (found > 100) if diagnostics == "features" else (found == 0)
    measured = len(list(tmp_path.rglob("real.safetensors")))
    assert measured == {"none": 0, "last": 1, "every": 2, "features": 1}[diagnostics]
    drawn = {path.name for path in write_figures(folder)}
    assert ("gaussians.png" in drawn) == (diagnostics != "none")


def test_without_the_cache_no_decoded_image_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for label, number in [(label, number) for label in "ab" for number in range(5)]:
        file = tmp_path / "photos" / label / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)).save(file)
    (tmp_path / "data").mkdir()

    def invoke(name: str) -> list[Path]:
        words = ["run", "-m", "exact", "-d", f"folder:{tmp_path / 'photos'}", "--tasks", "1", "--image-size", "8", "-q"]
        words += ["--data-root", str(tmp_path / "data"), "-s", "backbone.options.filters=4"]
        result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / name)])
        assert result.exception is None, result.output
        return list((tmp_path / "data").rglob("*.safetensors"))

    monkeypatch.setenv("ADAGAUSS_CACHE", "off")
    assert invoke("without") == []
    monkeypatch.delenv("ADAGAUSS_CACHE")
    assert len(invoke("with")) > 0
