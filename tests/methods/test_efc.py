"""EFC and EFC++: the feature matrix, the drift it weighs, asymmetric rehearsal and re-balancing."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import Sampler
from adagauss.data.dataset import load_dataset
from adagauss.data.images import LabelledImages, Subset
from adagauss.errors import ConfigError
from adagauss.methods import dataset_layers, make_method
from adagauss.methods.efc import (
    EFC,
    FeatureMatrix,
    MeasuredMatrix,
    PrototypeCrossEntropy,
    Rebalanced,
    feature_matrix,
    metric_weights,
)
from adagauss.parts.classifiers import LinearScorer
from adagauss.parts.representation import Step
from adagauss.utils.runtime import Runtime

DIGITS = load_dataset("digits")
FAST: dict[str, Any] = {
    "backbone.name": "convnet",
    "backbone.features": 8,
    "representation.first.epochs": 2,
    "representation.first.batch_size": 64,
    "representation.later.epochs": 2,
    "representation.later.batch_size": 16,
    "representation.later.learning_rate": 1e-3,
}


def some(classes: list[int], each: int = 30) -> LabelledImages:
    data = DIGITS.train.of_classes(classes)
    kept = torch.cat([torch.nonzero(data.targets == index).flatten()[:each] for index in range(len(classes))])
    return LabelledImages(Subset(data.images, kept), data.targets[kept], tuple(classes))


def learner(name: str, runtime: Runtime | None = None, **settings: Any) -> Learner:
    method = make_method(name, None, {**FAST, **settings}, dataset_layers("digits"))
    return Learner(method, (1, 8, 8), DIGITS.mean, DIGITS.std, runtime or Runtime(seed=1))


def matrix_of(taught: Learner) -> Tensor:
    measured = taught.state.states["representation/terms/feature_matrix"]
    assert isinstance(measured, MeasuredMatrix)
    return measured.matrix


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_feature_matrix_equals_its_definition_by_gradients_of_each_image() -> None:
    features, weight, bias = random(7, 4), random(5, 4, seed=1), random(5, seed=2)
    total = torch.zeros(4, 4, dtype=torch.float64)
    for feature in features:
        point = feature.clone().requires_grad_()
        log_p = torch.log_softmax(weight @ point + bias, dim=0)
        for c in range(5):
            (gradient,) = torch.autograd.grad(log_p[c], point, retain_graph=True)
            total += log_p[c].exp().detach() * torch.outer(gradient, gradient)
    torch.testing.assert_close(feature_matrix(features, weight, bias), total / 7)


def test_drift_weights_are_the_published_ones_and_sum_to_one() -> None:
    means, points, root = random(3, 4), random(20, 4, seed=1), random(4, 4, seed=2)
    matrix = root @ root.T
    weights = metric_weights(means, points, matrix, sigma=0.2)
    torch.testing.assert_close(weights.sum(1), torch.ones(3, dtype=torch.float64))
    delta = points[None] - means[:, None]
    scores = -torch.einsum("cni,ij,cnj->cn", delta, matrix, delta)
    scores = (scores - scores.min()) / (scores.max() - scores.min())
    kernel = (scores / (2 * 0.2**2)).exp()
    torch.testing.assert_close(weights, kernel / kernel.sum(1, keepdim=True))


def test_drift_weights_stay_finite_where_all_distances_are_alike() -> None:
    weights = metric_weights(random(1, 4), random(1, 4, seed=1), torch.eye(4, dtype=torch.float64), sigma=0.2)
    assert weights.tolist() == [[1.0]]


def test_drift_reads_the_matrix_of_the_previous_task(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = learner("efc")
    taught.learn(some([0, 1]))
    before = matrix_of(taught).clone()
    read: list[Tensor] = []
    move = EFC.move

    def spy(self: EFC, memory: ClassGaussians, now: CurrentTask) -> ClassGaussians:
        measured = now.term_states["feature_matrix"]
        assert isinstance(measured, MeasuredMatrix)
        read.append(measured.matrix)
        moved = move(self, memory, now)
        old, new = now.features(0, previous=True).double(), now.features(0).double()
        weights = metric_weights(memory.means, old, before.double(), sigma=0.2)
        torch.testing.assert_close(moved.means, memory.means + weights @ (new - old))
        assert not torch.equal(moved.means, memory.means)
        assert torch.equal(moved.packed, memory.packed)
        return moved

    monkeypatch.setattr(EFC, "move", spy)
    taught.learn(some([2, 3]))
    assert torch.equal(read[0], before)
    assert not torch.equal(matrix_of(taught), before)


def test_drift_without_the_term_says_which_term_to_add() -> None:
    with pytest.raises(ConfigError, match=r"representation\.terms\.feature_matrix\.kind=feature_matrix"):
        make_method("efc", settings={"representation.terms.feature_matrix": None})


def second_task(taught: Learner) -> CurrentTask:
    """A task after the first, with the network as it stands when training begins."""
    network = copy.deepcopy(taught.network)
    network.head.grow(2)
    return CurrentTask(
        1, some([2, 3]), network, taught.network.frozen_copy(), taught.method.augmentation, taught.runtime
    )


def step_of(now: CurrentTask, memory: ClassGaussians, size: int = 10) -> Step:
    images = now.data.images.batch(torch.arange(25, 25 + size)).float() / 255
    targets = now.data.targets[25 : 25 + size]
    return Step(images, targets, now, memory, torch.Generator().manual_seed(0), now.network.extractor.learned)


@pytest.fixture(scope="module")
def first() -> Learner:
    taught = learner("efc")
    taught.learn(some([0, 1]))
    return taught


def test_penalty_is_the_drift_in_the_metric_and_nothing_in_the_first_task(first: Learner) -> None:
    now = second_task(first)
    step = step_of(now, first.memory)
    assert FeatureMatrix().loss(step) is None
    bottleneck = now.network.extractor.bottleneck
    assert isinstance(bottleneck, nn.Linear)
    with torch.no_grad():
        bottleneck.bias.add_(torch.arange(8.0))
    delta = torch.arange(8.0)
    expected = 10 * delta @ matrix_of(first) @ delta + 0.1 * delta @ delta
    loss = FeatureMatrix(importance=10.0, damping=0.1).loss(step, MeasuredMatrix(matrix=matrix_of(first)))
    torch.testing.assert_close(loss, expected, atol=1e-3, rtol=1e-4)


def test_prototypes_train_every_head_and_leave_the_backbone_alone(first: Learner) -> None:
    now = second_task(first)
    now.network.requires_grad_(True)
    term = PrototypeCrossEntropy().start(now, first.memory)
    assert term is not None
    step = step_of(now, first.memory)
    only_prototypes = term(step)
    assert only_prototypes is not None
    torch.autograd.backward(only_prototypes)
    assert all(parameter.grad is None for parameter in now.network.extractor.parameters())
    for block in now.network.head.blocks:
        assert all(float(parameter.grad.abs().sum()) > 0 for parameter in block.parameters())  # type: ignore[union-attr]
    mixed = term(step)
    assert mixed is not None
    torch.autograd.backward(mixed)
    assert any(parameter.grad is not None for parameter in now.network.extractor.parameters())


def test_rehearsal_mixes_old_and_new_as_their_numbers_of_classes(
    first: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = second_task(first)
    term = PrototypeCrossEntropy().start(now, first.memory)
    assert term is not None
    drawn: list[list[int]] = []
    draw = Sampler.draw

    def spy(self: Sampler, classes: Tensor, generator: torch.Generator) -> Tensor:
        drawn.append(torch.bincount(classes, minlength=2).tolist())
        return draw(self, classes, generator)

    monkeypatch.setattr(Sampler, "draw", spy)
    for epoch in range(2):
        term(replace(step_of(now, first.memory, size=12), starts_epoch=True))
        term(step_of(now, first.memory, size=12))
        assert drawn[2 * epoch :] == [[6, 6], [3, 3]]


def test_covariances_are_factored_once_a_task_and_no_image_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = learner("efc")
    taught.learn(some([0, 1]))
    calls: list[int] = []

    factors = ClassGaussians.factors

    def counting(self: ClassGaussians, *settings: Any) -> Tensor:
        calls.append(1)
        return factors(self, *settings)

    started: list[weakref.ref[nn.Module]] = []
    start = PrototypeCrossEntropy.start

    def starting(self: PrototypeCrossEntropy, now: CurrentTask, memory: ClassGaussians) -> nn.Module | None:
        live = start(self, now, memory)
        assert live is not None
        started.append(weakref.ref(live))
        return live

    monkeypatch.setattr(ClassGaussians, "factors", counting)
    monkeypatch.setattr(PrototypeCrossEntropy, "start", starting)
    taught.learn(some([2, 3]))
    assert len(calls) == 1
    # The term at work holds the last batch; it dies with the task, and hands nothing on.
    gc.collect()
    assert [live() for live in started] == [None]
    assert "representation/terms/pr_ace" not in taught.state.states


def test_draws_have_the_mean_and_covariance_of_their_class() -> None:
    bank = ClassGaussians.from_features(random(60, 3) @ random(3, 3, seed=4), [0] * 20 + [1] * 40)
    classes = torch.tensor([1, 0]).repeat(20_000)
    draws = Sampler(bank, jitter=0.5).draw(classes, torch.Generator().manual_seed(0))
    seen = ClassGaussians.from_features(draws, classes).select([0, 1])
    torch.testing.assert_close(seen.means, bank.means, atol=0.1, rtol=0)
    torch.testing.assert_close(seen.covariances, bank.covariances + 0.5 * torch.eye(3), atol=0.2, rtol=0.05)


def test_batch_norm_is_frozen_after_the_first_task() -> None:
    taught = learner("efc")
    taught.learn(some([0, 1]))
    before = {name: value.clone() for name, value in taught.network.state_dict().items()}
    taught.learn(some([2, 3]))
    after = taught.network.state_dict()
    norms = [name for name in before if ".bn" in name]
    assert norms
    assert all(torch.equal(before[name], after[name]) for name in norms)
    assert not torch.equal(before["extractor.trunk.conv1.weight"], after["extractor.trunk.conv1.weight"])


class GoneError(RuntimeError):
    """The machine went away."""


class OneSnapshot:
    """Keeps the first snapshot that is offered, and stops there."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {}

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        return self.kept.get(stage)

    def offer(self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        if stage.startswith("task 2") and stage not in self.kept:
            self.kept[stage] = copy.deepcopy((tensors, facts))
            raise GoneError


def test_training_resumed_at_an_epoch_ends_as_if_it_had_not_been_interrupted() -> None:
    whole, broken = learner("efc"), learner("efc", Runtime(seed=1, snapshots=OneSnapshot()))
    for one in (whole, broken):
        one.learn(some([0, 1]))
    with pytest.raises(GoneError):
        broken.learn(some([2, 3]))
    broken.learn(some([2, 3]))
    whole.learn(some([2, 3]))
    images = DIGITS.test.images
    assert np.array_equal(whole.predictions(images).probabilities, broken.predictions(images).probabilities)


REBALANCE: dict[str, Any] = {"classifier.recipe.epochs": 3, "classifier.recipe.learning_rate": 0.1}


def test_rebalanced_heads_are_those_saved_predicted_with_and_measured(tmp_path: Path) -> None:
    taught = learner("efc++", **REBALANCE)
    taught.learn(some([0, 1]))
    old_block = taught.network.head.class_parameters()[0]
    task = some([2, 3])
    taught.learn(task)
    weight, bias = taught.network.head.class_parameters()
    assert not torch.equal(weight[:2], old_block)
    images = DIGITS.test.images
    features = taught.features(images)
    torch.testing.assert_close(taught.state.scorer(features), features @ weight.T + bias)
    taught.save(tmp_path / "learner")
    loaded = Learner.load(tmp_path / "learner")
    assert torch.equal(loaded.network.head.class_parameters()[0], weight)
    assert np.array_equal(loaded.predictions(images).probabilities, taught.predictions(images).probabilities)
    now = CurrentTask(1, task, taught.network, None, taught.method.augmentation, taught.runtime)
    assert torch.equal(feature_matrix(now.features(0), weight, bias).float(), matrix_of(taught))


def test_training_leaves_old_heads_as_rebalancing_left_them(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = learner("efc++", **REBALANCE)
    for task in ([0, 1], [2, 3]):
        taught.learn(some(task))
    left = taught.network.head.class_parameters()[0]
    found: list[Tensor] = []
    fit = Rebalanced.fit

    def spy(self: Rebalanced, memory: ClassGaussians, now: CurrentTask, before: State | None) -> LinearScorer:
        found.append(now.network.head.class_parameters()[0])
        return fit(self, memory, now, before)

    monkeypatch.setattr(Rebalanced, "fit", spy)
    taught.learn(some([4]))
    assert torch.equal(found[0][:4], left)
    assert not torch.equal(taught.network.head.class_parameters()[0][:4], left)


def test_rebalancing_draws_as_many_of_an_old_class_as_it_had_images(monkeypatch: pytest.MonkeyPatch) -> None:
    taught = learner("efc++", **REBALANCE)
    taught.learn(some([0, 1], each=17))
    drawn: list[list[int]] = []
    draw = Sampler.draw

    def spy(self: Sampler, classes: Tensor, generator: torch.Generator) -> Tensor:
        drawn.append(torch.bincount(classes).tolist())
        return draw(self, classes, generator)

    monkeypatch.setattr(Sampler, "draw", spy)
    taught.learn(some([2, 3]))
    assert drawn == [[17, 17]] * 3


def test_rebalancing_gives_silent_old_classes_their_voice_again(first: Learner) -> None:
    now = second_task(first)
    memory = first.method.memory.add(first.memory, now)
    draws = Sampler(first.memory, 1e-5).draw(torch.arange(2).repeat(200), torch.Generator().manual_seed(0))
    weight, bias = now.network.head.class_parameters()
    # The new outputs answer to what old classes look like, the old ones to nothing.
    towards_old = draws.mean(0) / draws.mean(0).norm()
    now.network.head.set_class_parameters(torch.stack([0 * towards_old] * 2 + [towards_old] * 2).to(weight), bias)

    def old_share() -> float:
        return float((now.network.head.seen(draws).argmax(1) < 2).float().mean())

    assert old_share() < 0.1
    recipe = Rebalanced().recipe.with_changes(batch_size=16, learning_rate=0.1, epochs=30)
    scorer = Rebalanced(recipe=recipe).fit(memory, now, None)
    assert old_share() > 0.3
    assert torch.equal(scorer(draws).argmax(1), now.network.head.seen(draws).argmax(1))
