"""Extractors can be taken apart from Python: `torch.export` with any number of images; for scorers see test_onnx.py."""

from __future__ import annotations

import pytest
import torch

from adagauss.core.learn import Learner
from adagauss.methods import methods
from tests.contracts.toy import taught, toy_images
from tests.faults.budget import some


def check_export(learner: Learner) -> None:
    images = toy_images(test=True).images.batch(torch.arange(9)).float() / 255
    predictor = learner.state.predictor
    batch = torch.export.Dim("batch", min=1, max=4096)
    exported = torch.export.export(predictor, (images[:4],), dynamic_shapes={"images": {0: batch}}).module()
    for number in (1, 2, 9):
        torch.testing.assert_close(exported(images[:number]), predictor(images[:number]))


ANALYTIC = [name for name, info in methods().items() if info.family == "analytic"]


@pytest.mark.parametrize("name", some(ANALYTIC, 2))  # one extractor, and two in one
def test_a_method_that_averages_mirror_images_exports_what_it_predicts(name: str) -> None:
    learner = taught(name, 2, None, **{"backbone.mirror": True})
    check_export(learner)
    pixels = toy_images(test=True).images
    scores = learner.state.predictor(pixels.batch(torch.arange(len(pixels))).float() / 255).scores
    torch.testing.assert_close(scores, learner.scores(learner.features(pixels)), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("backbone", ["resnet_thin", "resnet32", "patch_resnet"])
def test_a_network_exports_with_any_number_of_images(backbone: str) -> None:
    check_export(taught("frozen", 1, None, **{"backbone.name": backbone}))
