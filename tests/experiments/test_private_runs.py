"""No file of a run holds an image, or the feature of an image."""

from __future__ import annotations

from pathlib import Path

import torch

from adagauss.core.learn import Learner
from adagauss.data.dataset import load_dataset
from adagauss.data.stream import StreamConfig
from adagauss.experiments.config import make_config
from adagauss.experiments.run import RunFolder
from adagauss.experiments.runner import run
from adagauss.utils.checkpoint import load_tensors

SETTINGS = {"backbone.name": "convnet", "representation.first.epochs": 1}


def test_no_file_of_a_run_holds_the_feature_of_an_image(tmp_path: Path) -> None:
    stream = StreamConfig(dataset="digits", sizes=(2, 1), classes=3)
    run(make_config("fecam", stream, settings=SETTINGS), tmp_path)
    folder, digits = RunFolder(tmp_path), load_dataset("digits")
    learner = Learner.load(folder.last_checkpoint())
    images = [part.of_classes([0, 1, 2]).images for part in (digits.train, digits.test)]
    features = torch.cat([learner.features(part) for part in images]).double()
    compared = 0
    for file in tmp_path.rglob("*.safetensors"):
        tensors, _ = load_tensors(file, file.name.partition(".")[0])
        for tensor in tensors.values():
            if tensor.is_floating_point() and tensor.ndim == 2 and tensor.shape[1] == features.shape[1]:
                assert not (torch.cdist(tensor.double(), features) < 1e-5).any()
                compared += len(tensor)
    assert compared
