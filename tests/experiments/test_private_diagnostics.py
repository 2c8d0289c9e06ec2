"""Diagnostics in a run folder are statistics of images, and features of single images only with `features`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adagauss.analysis.accuracy_figures import write_figures
from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import Diagnostics, make_config
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import run
from adagauss.utils.checkpoint import load_tensors

SETTINGS = {"backbone.name": "convnet", "representation.first.epochs": 1}


@pytest.mark.parametrize("diagnostics", ["none", "last", "every", "features"])
def test_no_file_of_a_run_holds_the_feature_of_an_image_without_the_option(
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
