"""Exact classifiers within a learner: what they compare on, where they run, and under which protocols."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adagauss.backbones import build_extractor
from adagauss.data.images import ArrayImages
from adagauss.errors import ConfigError
from adagauss.methods import make_method, methods
from adagauss.runs import make_config
from adagauss.runs.protocols import PROTOCOLS
from adagauss.sums import Choice, Weighing
from tests.contracts.toy import learner_of, quick_method, toy_tasks

EXACT = [name for name, info in methods().items() if info.family == "exact"]


@pytest.mark.parametrize(("judged", "expected"), [(5, 5), (100_000, None)])
def test_arriving_images_judge_when_all_are_in_the_sums(
    monkeypatch: pytest.MonkeyPatch, judged: int, expected: int | None
) -> None:
    compared: list[tuple[int, int]] = []
    observe = Choice.observe

    def spy(self: Choice, weighing: Weighing, views: Tensor, targets: Tensor) -> Any:
        compared.append((int(weighing.sums.images), len(targets)))
        return observe(self, weighing, views, targets)

    monkeypatch.setattr(Choice, "observe", spy)
    learner = learner_of(quick_method("exact", None, **{"classifier.judged": judged}))
    before = 0
    for task in toy_tasks()[:2]:
        learner.learn(task)
        before += len(task)
        assert compared[-1] == (before, expected or len(task))


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("name", EXACT)
def test_a_protocol_leaves_networks_alone_that_are_not_trained(name: str, protocol: str) -> None:
    chosen = PROTOCOLS[protocol]
    method = make_config(name, chosen.stream, protocol=chosen).method
    chosen.check_weights(method)
    own = make_method(name).backbone
    assert method.backbone.with_changes(mirror=own.mirror, options=own.options) == own


def test_preparation_keeps_features_where_the_network_is() -> None:
    extractor = build_extractor(
        make_method("exact", settings={"backbone.options.filters": 4}).backbone, (3, 8, 8), (0.5,) * 3, (0.2,) * 3
    )
    placed: list[str] = []
    fit = "adagauss.backbones.patches.fit_patches"

    def spy(images: object, settings: object, generator: object, device: torch.device) -> object:
        placed.append(device.type)
        return extractor.trunk.features

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, spy)
        extractor.to("meta").prepare(ArrayImages(torch.zeros(4, 3, 8, 8, dtype=torch.uint8)), torch.Generator())
    assert placed == ["meta"]


def test_another_network_drops_the_options_of_the_one_before() -> None:
    method = make_method("exact-auto", settings={"backbone.name": "convnet"})
    assert (method.backbone.name, method.backbone.options) == ("convnet", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classifier.strengths": []}, "one strength at least"),
        ({"classifier.group_weights": [[1.0], [1.0, 0.0]]}, "as many weights"),
        ({"backbone.options.pretrained": "patches"}, "name a network"),
        ({"backbone.options.pretrained": "nonsense"}, "unknown backbone"),
        ({"backbone.name": None}, "backbone.name"),
        ({"representation.later.epochs": 3}, "only after the first"),
    ],
)
def test_what_cannot_work_is_refused_when_the_method_is_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_method("exact-auto", settings=settings)
