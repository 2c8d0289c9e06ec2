"""Classes of one image, whose feature is stored as a mean, are named."""

from __future__ import annotations

import pytest
import torch

from adagauss.core.learner_state import single_image_classes
from adagauss.data.images import LabelledImages, Subset
from tests.contracts.toy import toy_learner, toy_tasks


@pytest.mark.parametrize(
    ("name", "settings"),
    [("exact", {}), ("exact", {"backbone.mirror": True}), ("exact", {"backbone.mirror": False}), ("frozen", {})],
)
def test_classes_of_one_image_are_named_for_their_mean_is_its_feature(name: str, settings: dict[str, object]) -> None:
    task = toy_tasks()[0]
    first = torch.nonzero(task.targets == 1).flatten()[:1]
    rows = torch.cat([torch.nonzero(task.targets == 0).flatten(), first])
    learner = toy_learner(name, None, **settings)
    learner.learn(LabelledImages(Subset(task.images, rows), task.targets[rows], task.classes))
    assert single_image_classes(learner.state) == ["one"]
    feature = learner.features(Subset(task.images, first))[0].double()
    tensors = learner.state.state_dict()
    mean = tensors["parts.classifier.sums.cross"][:, 1] if name == "exact" else tensors["memory.means"][1]
    assert torch.allclose(mean, feature, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [("exact", {}, True), ("acil", {}, True), ("dsal", {}, True), ("finetune", {}, False)],
)
def test_a_class_of_one_image_is_named_wherever_a_sum_of_it_is_kept(
    name: str, settings: dict[str, object], named: bool
) -> None:
    task = toy_tasks()[0]
    rows = torch.cat([torch.nonzero(task.targets == 0).flatten(), torch.nonzero(task.targets == 1).flatten()[:1]])
    learner = toy_learner(name, None, **settings)
    learner.learn(LabelledImages(Subset(task.images, rows), task.targets[rows], task.classes))
    assert single_image_classes(learner.state) == (["one"] if named else [])
