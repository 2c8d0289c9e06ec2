"""The holdout split, and its statistics in Python, in a file and in the predictor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from adagauss.backbones import Network
from adagauss.core.calibration import holdout_mask
from adagauss.core.learn import Learner
from adagauss.core.task import CurrentTask
from adagauss.data.augment import Augmentation
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.utils.runtime import Runtime
from tests.contracts.toy import taught, toy_images


@pytest.mark.parametrize(("images", "left"), [(1, 0), (2, 0), (3, 1), (10, 1), (26, 3)])
def test_a_tenth_of_each_class_is_left_out_but_two_images_stay(images: int, left: int) -> None:
    targets = torch.arange(3).repeat_interleave(images)
    mask = holdout_mask(targets, 0.1, torch.Generator().manual_seed(0))
    assert torch.bincount(targets[~mask], minlength=3).tolist() == [left] * 3


def test_nothing_is_left_out_without_a_share() -> None:
    assert bool(holdout_mask(torch.zeros(50, dtype=torch.long), 0.0, torch.Generator()).all())


def test_a_part_of_a_task_has_the_features_of_its_images() -> None:
    data = LabelledImages(ArrayImages(torch.rand(6, 1, 4, 4)), torch.tensor([0, 1, 0, 1, 0, 1]), ("a", "b"))
    network = taught("fecam", 1).network
    assert isinstance(network, Network)
    now = CurrentTask(1, data, network, None, Augmentation.none(), Runtime())
    now._features[(False, "test")] = torch.arange(12.0).view(6, 2)
    part = now.part(torch.tensor([1, 4]))
    assert part.features().tolist() == [[2.0, 3.0], [8.0, 9.0]]
    assert part.targets.tolist() == [1, 0]
    assert part.name != now.name  # seeds and snapshots of a part are not those of the task


@pytest.mark.parametrize(
    ("name", "settings", "held_out"),
    [
        ("analytic-patches", {}, [True, True]),
        ("fecam", {}, [False, True]),  # the first task trains the network
        ("fecam", {"evidence.share": 0.0}, [False, False]),
        ("adagauss+", {}, [False, False]),
        ("adagauss+", {"evidence.train_holdout": 0.2}, [True, True]),
        ("finetune", {}, [False, False]),
    ],
)
def test_statistics_show_whether_images_were_held_out(
    name: str, settings: dict[str, float], held_out: list[bool]
) -> None:
    found = [taught(name, tasks, None, **settings).state.evidence for tasks in (1, 2)]
    assert [one.held_out for one in found] == held_out
    assert all(bool((one.learned > 0).all()) for one in found)


def test_images_that_were_left_out_are_learned_afterwards() -> None:
    learner = taught("fecam", 2, None)
    assert torch.equal(learner.memory.counts, learner.state.evidence.learned)
    trained = taught("adagauss+", 1, None, **{"evidence.train_holdout": 0.3})
    assert torch.equal(trained.memory.counts, trained.state.evidence.learned)


@pytest.mark.parametrize("name", ["analytic-patches", "fecam", "adagauss+"])
def test_probabilities_are_the_same_in_a_file_and_in_the_predictor(name: str, tmp_path: Path) -> None:
    learner = taught(name, 2)
    images = toy_images(test=True).images
    here = learner.predictions(images).probabilities
    learner.save(tmp_path / "learner.safetensors")
    loaded = Learner.load(tmp_path / "learner.safetensors")
    assert np.array_equal(loaded.predictions(images).probabilities, here)
    assert loaded.summary() == learner.summary()
    assert torch.equal(loaded.predictions(images).ood_score(), learner.predictions(images).ood_score())
    with torch.no_grad():
        outputs = learner.state.predictor(images.batch(torch.arange(len(images))).float() / 255)
    sorted_scores = outputs.scores[:, learner.state.predictor.order]
    np.testing.assert_allclose(torch.softmax(sorted_scores.double(), 1), here, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(1 - outputs.p_value, learner.predictions(images).ood_score(), atol=1e-3, rtol=1e-3)


def test_sets_grow_with_the_coverage() -> None:
    learner = taught("fecam", 2)
    images = toy_images(test=True).images
    found = learner.predictions(images)
    small, large = found.prediction_sets(0.5), found.prediction_sets(0.99)
    assert all(some and set(some) <= set(more) for some, more in zip(small, large, strict=True))
    winners = learner.predict(images)
    assert all(some[0] == winner for some, winner in zip(small, winners, strict=True))


def test_a_forgotten_class_leaves_no_statistics() -> None:
    learner = taught("analytic-patches", 2)
    gone = learner.classes[0]
    learner.forget([gone])
    assert learner.state.evidence.classes == len(learner.classes)
    assert gone not in [one.label for one in learner.summary()]
    assert all(gone != other for one in learner.summary() for other, _ in one.confused_with)
