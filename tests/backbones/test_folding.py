"""Batch norms folded into convolutions: the same features, and nothing changes in the network itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adagauss.backbones import BackboneConfig, Extractor, build_extractor
from adagauss.backbones.extractor import folded


def network(name: str, **settings: object) -> Extractor:
    """A network whose batch norms have seen images."""
    torch.manual_seed(0)
    config = BackboneConfig.of({"name": name, "features": 8, "weights": "random", **settings})
    extractor = build_extractor(config, (3, 32, 32), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    for module in extractor.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, values in [*module.named_parameters(), *module.named_buffers()]:
                if name in ("running_var", "weight"):
                    nn.init.uniform_(values, 0.5, 2.0)
                elif name in ("running_mean", "bias"):
                    nn.init.normal_(values)
    return extractor.eval()


def batch_norms(extractor: Extractor) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in extractor.modules())


@pytest.mark.parametrize("name", ["resnet_thin", "convnet"])
def test_folded_networks_have_no_batch_norms_and_the_same_features(name: str) -> None:
    extractor, images = network(name), torch.rand(4, 3, 32, 32)
    count = batch_norms(extractor)
    with torch.inference_mode():
        before = extractor(images)
        torch.testing.assert_close(folded(extractor)(images), before, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(extractor(images), before, rtol=0, atol=0)
    assert batch_norms(folded(extractor)) == 0
    assert batch_norms(extractor) == count > 0


def test_a_network_of_which_only_some_blocks_learn_is_left_as_it_is() -> None:
    extractor = network("resnet_thin", train_blocks="last:1")
    assert folded(extractor) is extractor


def test_a_trunk_that_cannot_be_traced_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    extractor = network("resnet_thin")

    def looks(_: object, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3)) if bool(images.sum() > 0) else images.amax((2, 3))

    monkeypatch.setattr(type(extractor.trunk), "forward", looks)
    assert folded(extractor) is extractor
