"""Exact classifiers within a learner: what they compare on, where they run, and under which protocols."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.analytic.selection import ModelSelection, Standardizer
from adagauss.backbones import build_extractor
from adagauss.backbones.frozen import FrozenFeatures
from adagauss.backbones.registry import backbone_info
from adagauss.core.learn import Learner
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import ConfigError, DataError
from adagauss.experiments.config import make_config
from adagauss.experiments.protocols import PROTOCOLS
from adagauss.methods import make_method, methods
from tests.contracts.toy import learner_of, quick_method, toy_images, toy_learner, toy_tasks

ANALYTIC = [name for name, info in methods().items() if info.family == "analytic"]


@pytest.mark.parametrize(("loo_images", "expected"), [(5, 5), (100_000, None)])
def test_left_out_scores_select_the_ridge_when_all_images_are_in_the_sums(
    monkeypatch: pytest.MonkeyPatch, loo_images: int, expected: int | None
) -> None:
    compared: list[tuple[int, int]] = []
    observe = ModelSelection.observe

    def spy(self: ModelSelection, weighing: Standardizer, features: Tensor, targets: Tensor, groups: Tensor) -> Any:
        compared.append((int(weighing.sums.images), len(targets)))
        return observe(self, weighing, features, targets, groups)

    monkeypatch.setattr(ModelSelection, "observe", spy)
    learner = learner_of(quick_method("exact", None, **{"classifier.loo_images": loo_images}))
    before = 0
    for task in toy_tasks()[:2]:
        learner.learn(task)
        before += len(task)
        assert compared[-1] == (before, expected or len(task))


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
@pytest.mark.parametrize("name", ANALYTIC)
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
        ({"classifier.strengths": [], "classifier.shrinkages": []}, "at least one of classifier.strengths"),
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


def test_answers_need_only_the_kinds_of_features_that_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(quick_method("exact-auto", None, **{"classifier.group_weights": ((1.0, 0.0),)}))
    task = toy_tasks()[0]
    learner.learn(task)
    expected = torch.softmax(learner.scores(learner.features(task.images)).double(), 1)

    def unasked(*_: object) -> Tensor:
        raise AssertionError("no answer depends on the network")

    features = learner.network.extractor.trunk
    assert isinstance(features, FrozenFeatures)
    monkeypatch.setattr(features.network, "forward", unasked)
    found = learner.predictions(task.images)
    torch.testing.assert_close(found.scores.softmax(1), expected[:, learner.state.predictor.order].float())
    with pytest.raises(AssertionError, match="no answer depends"):
        learner.features(task.images)


def test_a_frozen_network_is_not_copied() -> None:
    learner = learner_of(quick_method("exact", None))
    first, second = toy_tasks()[:2]
    learner.learn(first)
    network, before = learner.network, {name: value.clone() for name, value in learner.network.state_dict().items()}
    learner.learn(second)
    assert learner.network is network
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_images_of_an_instrument_with_many_channels_are_learned_and_the_learner_is_kept(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(60) % 3
    pixels = torch.randint(0, 60, (60, 5, 12, 12), generator=generator, dtype=torch.uint8)
    for image, target in zip(pixels, targets.tolist(), strict=True):
        image[1 + target, ::3] += 100  # each class has its stripes in a channel of its own
    method = make_method("exact", settings={"backbone.options.filters": 20, "backbone.options.patches": 2000})
    learner = Learner(method, (5, 12, 12), (0.5,) * 5, (0.25,) * 5)
    learner.learn(LabelledImages(ArrayImages(pixels[:30]), targets[:30], ("a", "b", "c")))
    learner.save(tmp_path / "kept.safetensors")
    found = Learner.load(tmp_path / "kept.safetensors").predict(ArrayImages(pixels[30:]))
    assert [("a", "b", "c").index(label) for label in found] == targets[30:].tolist()


def test_a_pretrained_network_refuses_other_channels_and_the_advice_works() -> None:
    method = make_method("exact-auto", settings={"backbone.options.pretrained": "efficientnet_lite0"})
    with pytest.raises(ConfigError, match=r"not 5 channels.*backbone\.options\.pretrained=null"):
        Learner(method, (5, 12, 12), (0.5,) * 5, (0.25,) * 5)
    Learner(
        make_method("exact-auto", settings={"backbone.options.pretrained": None}), (5, 12, 12), (0.5,) * 5, (0.2,) * 5
    )


@pytest.mark.parametrize("non_negative", [True, False])
def test_roots_of_features_that_are_never_negative_have_unit_length(
    non_negative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = replace(backbone_info("convnet"), non_negative=non_negative)
    images, groups = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(0)), []
    for root in (False, True):
        settings = {"backbone.options.pretrained": "convnet", "backbone.options.root": root}
        method = make_method("analytic", settings=settings)
        with monkeypatch.context() as patch:
            patch.setattr("adagauss.backbones.frozen.backbone_info", lambda _: info)
            extractor = Learner(method, (3, 12, 12), (0.5,) * 3, (0.25,) * 3).network.extractor.eval()
        groups.append(extractor(images).detach().split(extractor.groups, 1))
    (patches, features), (same, found) = groups
    assert torch.equal(patches, same)
    torch.testing.assert_close(found, F.normalize(features.sqrt()) if non_negative else features)


def test_thumbnails_are_enlarged_to_the_size_of_the_pretrained_network() -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="a network with a size of its own: the extra pretrained")
    for enlarge, expected in ((True, 224), (False, 96)):
        method = make_method("analytic", settings={"backbone.options.enlarge": enlarge})
        features = Learner(method, (3, 12, 12), (0.5,) * 3, (0.25,) * 3).network.extractor.trunk
        assert isinstance(features, FrozenFeatures)
        assert features.network is not None
        assert features.network.input_size == expected


@pytest.mark.parametrize("shape", [(2, 9, 9, 2), (2, 9, 9, 9), (2, 30, 12, 12)])
def test_channels_that_could_be_rows_are_not_guessed_at(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"\(N, C, H, W\)"):
        ArrayImages(torch.zeros(shape, dtype=torch.uint8))


def test_a_learner_of_twenty_classes_on_1280_features_takes_30_megabytes_at_most(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="the file holds the network of the extra pretrained")
    pixels = torch.randint(0, 256, (40, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    learner = Learner(make_method("exact-pretrained"), (3, 8, 8), (0.5,) * 3, (0.25,) * 3)
    learner.learn(LabelledImages(ArrayImages(pixels), torch.arange(40) % 20, tuple(range(20))))
    learner.save(tmp_path / "kept.safetensors")
    assert learner.network.extractor.size == 1280
    assert (tmp_path / "kept.safetensors").stat().st_size <= 30_000_000


@pytest.mark.parametrize("again", [True, False])
def test_images_that_are_taught_twice_are_a_warning(again: bool, caplog: pytest.LogCaptureFixture) -> None:
    learner = toy_learner("analytic-patches")
    learner.learn(toy_images().of_classes(["zero", "one"]))
    learner.learn(toy_images(test=not again).of_classes(["one"]))
    assert ("the images of class 'one' seem to have been learned before" in caplog.text) == again
