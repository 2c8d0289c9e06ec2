"""Elastic weight consolidation: the Fisher information against gradients taken one image at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adagauss.backbones import BackboneConfig, IncrementalHead, Network, build_extractor
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.learn import Learner
from adagauss.core.task import CurrentTask
from adagauss.data.augment import Augmentation, to_float
from adagauss.data.dataset import load_dataset
from adagauss.data.images import ArrayImages, LabelledImages, Subset
from adagauss.methods import dataset_layers, make_method
from adagauss.methods.ewc import ElasticWeights, Importance
from adagauss.parts.representation import Step
from adagauss.utils.runtime import Runtime, RuntimeConfig

NONE = ClassGaussians(64, "none")


def second_task(backbone: str = "convnet", images: int = 12) -> CurrentTask:
    """Three new classes after two old ones, on random pixels; the network has seen data in training mode."""
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (images, 1, 8, 8), dtype=torch.uint8)
    data = LabelledImages(ArrayImages(pixels), torch.arange(images) % 3, ("a", "b", "c"))
    extractor = build_extractor(BackboneConfig(name=backbone, features=None), (1, 8, 8), (0.5,), (0.3,))
    extractor.train()(to_float(pixels))
    network = Network(extractor, IncrementalHead(extractor.size))
    network.head.grow(2)
    network.head.grow(3)
    runtime = Runtime(RuntimeConfig(device="cpu"))
    return CurrentTask(1, data, network, network.frozen_copy(), Augmentation.none(), runtime)


def measured(term: ElasticWeights, now: CurrentTask, before: Importance | None = None) -> Importance:
    """What the term hands back when a task is done."""
    importance = term.finish(now, NONE, before)
    assert isinstance(importance, Importance)
    return importance


def brute_force(now: CurrentTask, predicted: bool) -> dict[str, Tensor]:
    """The mean over images of squared gradients, one backward pass per image."""
    network = now.network.eval()
    parameters = dict(network.extractor.named_parameters())
    sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
    images = to_float(now.data.images.batch(torch.arange(len(now.data))))
    for image, target in zip(images, now.data.targets, strict=True):
        logits = network.head.current(network.extractor(image.unsqueeze(0)))
        label = logits.argmax(1) if predicted else target.unsqueeze(0)
        gradients = torch.autograd.grad(F.cross_entropy(logits, label), list(parameters.values()))
        for name, gradient in zip(parameters, gradients, strict=True):
            sums[name] += gradient.square()
    return {name: value / len(images) for name, value in sums.items()}


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name].contiguous(), rtol=1e-3, atol=1e-6 * float(value.abs().max()))


@pytest.mark.parametrize(("backbone", "labels"), [("convnet", "predicted"), ("resnet_thin", "true")])
def test_fisher_is_the_mean_of_squared_gradients_of_single_images(backbone: str, labels: Any) -> None:
    now = second_task(backbone)
    fisher = ElasticWeights(labels=labels, batch_size=5).measure(now)
    close(fisher, brute_force(now, labels == "predicted"))
    assert float(fisher["trunk.conv1.weight"].max()) > 0


def test_memory_bound_does_not_change_the_fisher(monkeypatch: pytest.MonkeyPatch) -> None:
    now = second_task()
    whole = ElasticWeights(labels="true").measure(now)
    monkeypatch.setattr("adagauss.methods.ewc.GRADIENT_NUMBERS", 1)
    close(ElasticWeights(labels="true").measure(now), whole)


def test_sampled_labels_estimate_the_expectation_under_the_network() -> None:
    """Over many copies of one image, the mean over drawn labels is Σ_y p(y|x) (∂ log p(y|x))²."""
    now = second_task()
    chosen = now.data.images.batch(torch.zeros(600, dtype=torch.long))
    now.data = LabelledImages(ArrayImages(chosen), torch.arange(600) % 3, now.data.classes)
    estimate = ElasticWeights().measure(now)["trunk.conv3.weight"]
    parameter = dict(now.network.extractor.named_parameters())["trunk.conv3.weight"]
    log_p = now.network.head.current(now.network.extractor.eval()(to_float(chosen[:1]))).log_softmax(1)[0]
    exact = torch.zeros_like(parameter)
    for y in range(3):
        exact += log_p[y].exp().detach() * torch.autograd.grad(log_p[y], parameter, retain_graph=True)[0].square()
    assert float((estimate - exact).norm() / exact.norm()) < 0.15


def test_measuring_leaves_batch_norm_mode_and_gradients_alone() -> None:
    now = second_task()
    now.network.train()
    before = {name: value.clone() for name, value in now.network.state_dict().items()}
    ElasticWeights().finish(now, NONE, None)
    assert all(torch.equal(value, before[name]) for name, value in now.network.state_dict().items())
    assert all(module.training for module in now.network.extractor.modules())
    assert all(parameter.grad is None for parameter in now.network.parameters())


def test_penalty_and_its_gradient_vanish_at_the_anchor_and_pull_back_to_it() -> None:
    now = second_task()
    importance = measured(ElasticWeights(weight=1.0), now)
    term = ElasticWeights(weight=1.0)
    step = Step(torch.zeros(0), torch.zeros(0), now, NONE, torch.Generator(), now.network.extractor)
    parameters = dict(now.network.extractor.named_parameters())
    loss = term.loss(step, importance)
    assert loss is not None
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    assert float(loss.detach()) == 0
    assert all(not gradient.any() for gradient in gradients)

    moved = parameters["trunk.conv2.weight"]
    with torch.no_grad():
        moved.add_(0.5)
    loss = term.loss(step, importance)
    assert loss is not None
    fisher = importance.by_name(now.network.extractor)["trunk.conv2.weight"]
    torch.testing.assert_close(loss, 0.5 * 0.25 * fisher.sum(), rtol=1e-4, atol=0.0)
    torch.testing.assert_close(torch.autograd.grad(loss, moved)[0].contiguous(), 0.5 * fisher, rtol=1e-4, atol=1e-9)


def test_fisher_of_tasks_is_merged_by_share_also_after_loading() -> None:
    one, two, share = second_task(images=12), second_task(images=9), 0.25
    term = ElasticWeights(labels="true", old_share=share)
    loaded = term.empty_state()
    loaded.load_state_dict(measured(term, one).state_dict())
    importance = measured(term, two, loaded)
    first, second = (ElasticWeights(labels="true").measure(now) for now in (one, two))
    merged = {name: share * first[name] + (1 - share) * second[name] for name in first}
    close(importance.by_name(two.network.extractor), merged)


def test_nothing_is_penalised_in_the_first_task() -> None:
    now = second_task()
    now.previous = None
    step = Step(torch.zeros(0), torch.zeros(0), now, NONE, torch.Generator(), now.network.extractor)
    assert ElasticWeights().loss(step) is None


def test_the_penalty_holds_the_weights_that_matter() -> None:
    """Over the same training, a larger λ leaves Σ F (θ − θ*)² of the second task smaller, by far."""
    digits = load_dataset("digits")

    def some(classes: tuple[int, ...]) -> LabelledImages:
        rows = torch.cat([torch.nonzero(digits.train.targets == digit).flatten()[:60] for digit in classes])
        chosen = LabelledImages(Subset(digits.train.images, rows), digits.train.targets[rows], digits.classes)
        return chosen.of_classes(classes)

    def moved(weight: float) -> float:
        settings: dict[str, Any] = {f"representation.{when}.epochs": 4 for when in ("first", "later")}
        method = make_method(
            "ewc", None, {**settings, "representation.terms.ewc.weight": weight}, dataset_layers("digits")
        )
        learner = Learner(method, (1, 8, 8), digits.mean, digits.std, Runtime(RuntimeConfig(device="cpu"), seed=3))
        learner.learn(some((0, 1)))
        importance = learner.state.states["representation/terms/ewc"]
        assert isinstance(importance, Importance)
        anchors = dict(learner.network.extractor.named_parameters())
        fisher = importance.by_name(learner.network.extractor)
        learner.learn(some((2, 3)))
        after = dict(learner.network.extractor.named_parameters())
        return sum(float((fisher[key] * (after[key] - anchors[key]).detach().square()).sum()) for key in anchors)

    assert moved(2e5) < 0.4 * moved(1e-6)
