"""The training loop: schedules, warm-up, clipping, errors, snapshots and seeds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adagauss.backbones import Backbone, BackboneConfig, Extractor, IncrementalHead, Network
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import History, Named, Objective, Recipe, batch_bounds, make_optimizer, rate_factor, train
from adagauss.data.augment import Augmentation
from adagauss.data.images import ArrayImages, LabelledImages
from adagauss.errors import ConfigError, NumericalError
from adagauss.parts.representation import Representation, Step, Term
from adagauss.parts.terms import AntiCollapse, CrossEntropy
from adagauss.utils.runtime import Runtime, RuntimeConfig

Saved = tuple[dict[str, Tensor], dict[str, Any]]


class InterruptedRunError(Exception):
    """Stands for a killed process."""


class KeptInMemory:
    """Snapshots that copy what they are given and stop the training after some epochs."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.saved: dict[str, Saved] = {}
        self.offers: list[Saved] = []
        self.stop_after = stop_after

    def load(self, stage: str) -> Saved | None:
        return self.saved.get(stage)

    def offer(self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.saved[stage] = copy.deepcopy((tensors, facts))
        self.offers.append(self.saved[stage])
        if len(self.offers) == self.stop_after:
            raise InterruptedRunError


class TensorBatches:
    """Shuffled batches of rows in memory."""

    def __init__(self, *tensors: Tensor, batch_size: int) -> None:
        self.tensors = tensors
        self.bounds = batch_bounds(len(tensors[0]), batch_size, drop_last=False)

    def __len__(self) -> int:
        return len(self.bounds)

    def epoch(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(len(self.tensors[0]), generator=generator)
        for start, stop in self.bounds:
            yield tuple(tensor[order[start:stop]] for tensor in self.tensors)


class Regression(Objective):
    """A small network with batch norm and dropout fitted to random targets, with noise from the epoch's generator."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
        self.broken = broken
        self.generator = torch.Generator()

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        first, *rest = self.module.parameters()
        return [{"params": [first], "lr": 0.1 * learning_rate}, {"params": rest, "lr": learning_rate}]

    def begin_epoch(self, epoch: int, generator: torch.Generator) -> None:
        self.generator = generator

    def forward(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        noise = 0.1 * torch.randn(inputs.shape, generator=self.generator)
        error = F.mse_loss(self.module(inputs + noise), targets)
        return {"error": error, "other": error * float("nan") if self.broken else 0.5 * error}


def runtime(snapshots: KeptInMemory | None = None, seed: int = 0) -> Runtime:
    return Runtime(RuntimeConfig(device="cpu"), seed, snapshots=snapshots)


def regression_batches() -> TensorBatches:
    generator = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(40, 4, generator=generator), torch.randn(40, 2, generator=generator)
    return TensorBatches(inputs, targets, batch_size=16)


def run(recipe: Recipe, at: Runtime, stage: str = "stage") -> tuple[dict[str, Tensor], History]:
    objective = Regression()
    history = train(objective, regression_batches(), recipe, at, stage)
    return objective.module.state_dict(), history


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@given(total=st.integers(0, 200), size=st.integers(1, 50), drop_last=st.booleans())
def test_batch_bounds(total: int, size: int, drop_last: bool) -> None:
    bounds = batch_bounds(total, size, drop_last)
    covered = [row for start, stop in bounds for row in range(start, stop)]
    assert covered == list(range(len(covered)))
    lengths = [stop - start for start, stop in bounds]
    if drop_last and total >= 2 * size > 2:
        assert set(lengths) == {size}
        assert total - len(covered) < size
    if not drop_last:
        assert len(covered) == total
    assert bool(bounds) == bool(total)
    assert all(length <= size + 1 for length in lengths)
    assert 1 not in lengths[1:] or size == 1
    assert len(lengths) < 2 or lengths[-1] > 1


def test_the_only_batch_is_kept_even_if_smaller() -> None:
    assert batch_bounds(3, 256, drop_last=True) == [(0, 3)]


@pytest.mark.parametrize("epochs", [200, 10, 100])
def test_milestones_of_the_default_recipe(epochs: int) -> None:
    recipe = Recipe(epochs=epochs)
    factors = [rate_factor(recipe, epoch, 0.0) for epoch in range(epochs)]
    drops = [epoch for epoch in range(1, epochs) if factors[epoch] < factors[epoch - 1]]
    assert drops == [epochs * 3 // 10, epochs * 6 // 10, epochs * 9 // 10]
    assert factors[0] == 1
    assert factors[-1] == pytest.approx(1e-3)


def test_milestones_above_one_are_epochs_however_many_there_are() -> None:
    recipe = Recipe(epochs=10, milestones=(0.5, 3, 30))
    assert [rate_factor(recipe, epoch, 0.0) for epoch in range(10)] == pytest.approx([1] * 3 + [0.1] * 2 + [0.01] * 5)
    longer = recipe.with_changes(epochs=40)
    drops = [epoch for epoch in range(1, 40) if rate_factor(longer, epoch, 0) < rate_factor(longer, epoch - 1, 0)]
    assert drops == [3, 20, 30]


def test_cosine_one_cycle_and_constant() -> None:
    cosine, one_cycle, constant = (Recipe(schedule=name) for name in ("cosine", "one_cycle", "constant"))
    assert [rate_factor(cosine, 0, x) for x in (0.0, 0.5, 1.0)] == pytest.approx([1, 0.5, 0])
    assert [rate_factor(one_cycle, 0, x) for x in (0.0, 0.25, 1.0)] == pytest.approx([0.04, 1, 1e-4])
    curve = [rate_factor(one_cycle, 0, step / 100) for step in range(101)]
    assert curve[:26] == sorted(curve[:26])
    assert curve[25:] == sorted(curve[25:], reverse=True)
    assert {rate_factor(constant, epoch, 0.9) for epoch in range(200)} == {1.0}


class Ramp(Objective):
    """A loss of slope one: each step of plain SGD moves the parameter by its learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(1, 1, bias=False)
        self.seen: list[float] = []

    def forward(self, *batch: Tensor) -> dict[str, Tensor]:
        self.seen.append(self.module.weight.item())
        return {"ramp": self.module.weight.sum()}


@pytest.mark.parametrize("schedule", ["milestones", "cosine", "one_cycle", "constant"])
def test_every_step_is_taken_at_the_rate_of_the_schedule(schedule: str) -> None:
    recipe = Recipe(epochs=10, schedule=schedule, learning_rate=0.5, momentum=0, weight_decay=0)
    objective = Ramp()
    train(objective, TensorBatches(torch.zeros(6, 1), batch_size=3), recipe, runtime(), "stage")
    steps = -torch.tensor([*objective.seen, objective.module.weight.item()]).diff()
    expected = [0.5 * rate_factor(recipe, step // 2, step / 20) for step in range(20)]
    assert steps.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("share", "epochs", "warm"), [(0.01, 200, 2), (0.0, 200, 0), (0.29, 100, 29), (1.0, 7, 7)])
def test_warm_epochs(share: float, epochs: int, warm: int) -> None:
    assert Recipe(head_warmup=share, epochs=epochs).warm_epochs == warm


def test_the_same_stage_gives_the_same_result_and_another_one_another() -> None:
    recipe = Recipe(epochs=3, learning_rate=0.05)
    one, history = run(recipe, runtime())
    torch.manual_seed(123)
    again, _ = run(recipe, runtime())
    assert same(one, again)
    assert not same(one, run(recipe, runtime(), "another")[0])
    assert not same(one, run(recipe, runtime(seed=1))[0])
    assert len(history) == 3
    assert history[-1]["other"] == pytest.approx(0.5 * history[-1]["error"])
    assert history[-1]["error"] < history[0]["error"]


class Decaying(torch.optim.Optimizer):
    """Counts its steps in the group, as optimizers without a schedule do."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.9, "steps": 0})

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                parameter.data -= group["lr"] / group["steps"] * parameter.grad


DECAYING = {"kind": f"{__name__}:Decaying"}
CYCLIC = {"kind": "CyclicLR", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3}
PLATEAU = {"kind": "ReduceLROnPlateau", "patience": 0, "threshold": 0.5}


@pytest.mark.parametrize(
    "optimizer", ["sgd", "adam", {"kind": "adamw", "betas": [0.8, 0.9]}, "nadam", DECAYING], ids=str
)
@pytest.mark.parametrize("epochs_done", [1, 4])
@pytest.mark.parametrize("schedule", ["milestones", "one_cycle", CYCLIC, PLATEAU], ids=str)
def test_a_resumed_training_equals_an_uninterrupted_one(optimizer: Named, epochs_done: int, schedule: Named) -> None:
    recipe = Recipe(epochs=6, learning_rate=0.05, optimizer=optimizer, schedule=schedule, clip_norm=1.0, warmup=0.3)
    whole, whole_history = run(recipe, runtime())
    snapshots = KeptInMemory(stop_after=epochs_done)
    with pytest.raises(InterruptedRunError):
        run(recipe, runtime(snapshots))
    snapshots.stop_after = None
    snapshots.offers.clear()
    resumed, resumed_history = run(recipe, runtime(snapshots))
    assert len(snapshots.offers) == 6 - epochs_done
    assert same(whole, resumed)
    assert whole_history == resumed_history


@pytest.mark.filterwarnings("error")
def test_a_schedule_of_torch_changes_the_rate_after_every_epoch_and_warms_up() -> None:
    schedule = {"kind": "ExponentialLR", "gamma": 0.5}
    recipe = Recipe(epochs=4, schedule=schedule, learning_rate=0.5, momentum=0, weight_decay=0, warmup=0.25)
    objective = Ramp()
    train(objective, TensorBatches(torch.zeros(6, 1), batch_size=3), recipe, runtime(), "stage")
    steps = -torch.tensor([*objective.seen, objective.module.weight.item()]).diff()
    rise = [0.01, 0.505, *[1.0] * 6]
    assert steps.tolist() == pytest.approx([0.5 * rise[step] * 0.5 ** (step // 2) for step in range(8)], abs=1e-6)


def test_an_optimizer_of_torch_gets_its_options() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    recipe = Recipe(optimizer={"kind": "AdamW", "betas": [0.8, 0.9]}, weight_decay=0.01, learning_rate=0.3)
    group = make_optimizer(recipe, [{"params": [weight], "lr": 0.1}]).param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.1, (0.8, 0.9), 0.01)
    own = f"{__name__}:HalfSGD"
    assert type(make_optimizer(Recipe(optimizer={"kind": own}), [{"params": [weight]}])) is HalfSGD


class HalfSGD(torch.optim.SGD):
    """An optimizer of a user."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adamww"}, "unknown optimizer 'adamww'; did you mean 'adamw'"),
        ({"optimizer": "lbfgs"}, "'lbfgs' cannot be used.*closure"),
        ({"optimizer": {"kind": "adamw", "momentum": 0.9}}, "cannot be used.*'momentum'"),
        ({"optimizer": {"kind": "adamw", "betas": [2, 0.9]}}, "cannot be used.*beta"),
        ({"optimizer": {"kind": "os:system"}}, "unknown optimizer"),
        ({"optimizer": {"kind": "evil.module:Lion"}}, "'evil.module'.*import it first"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"schedule": "lambdalr"}, "'lambdalr' cannot be used.*lr_lambda"),
        ({"schedule": CYCLIC, "optimizer": "adagrad"}, "CyclicLR.*cannot be used with the optimizer 'adagrad'"),
    ],
    ids=str,
)
def test_an_optimizer_or_schedule_that_does_not_fit_is_one_message(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.of(settings)


def test_a_schedule_of_the_library_may_be_named_by_its_kind() -> None:
    assert Recipe.of({"schedule": {"kind": "cosine"}}) == Recipe(schedule="cosine")


def test_an_optimizer_that_cannot_train_the_network_is_one_message() -> None:
    with pytest.raises(ConfigError, match=r"task 1.*'muon' cannot train this network"):
        run(Recipe(epochs=1, optimizer="muon"), runtime(), "task 1")


@pytest.mark.parametrize("clip_norm", [0.01, 0.5])
def test_clipping_bounds_the_joint_update(clip_norm: float) -> None:
    objective = Regression()
    before = [parameter.detach().clone() for parameter in objective.module.parameters()]
    recipe = Recipe(
        epochs=1, batch_size=40, learning_rate=1.0, momentum=0, weight_decay=0, schedule="constant", clip_norm=clip_norm
    )
    inputs, targets = regression_batches().tensors
    train(objective, TensorBatches(inputs, 100 * targets, batch_size=40), recipe, runtime(), "stage")
    rates = [0.1] + [1.0] * (len(before) - 1)
    moved = zip(objective.module.parameters(), before, rates, strict=True)
    gradient = torch.cat([((old - new.detach()) / rate).flatten() for new, old, rate in moved])
    assert float(gradient.norm()) == pytest.approx(clip_norm, rel=1e-3)


def test_a_loss_that_is_not_finite_names_the_term_and_the_stage() -> None:
    batches = TensorBatches(*regression_batches().tensors, batch_size=40)
    with pytest.raises(NumericalError, match=r"task 3.*'other'.*epoch 1"):
        train(Regression(broken=True), batches, Recipe(epochs=2), runtime(), "task 3")


def test_the_loss_that_was_not_finite_first_is_named() -> None:
    with pytest.raises(NumericalError, match=r"'other'.*epoch 1"):
        train(Regression(broken=True), regression_batches(), Recipe(epochs=2), runtime(), "stage")


class Teacher(Term):
    """Distillation from an exponential moving average of the network."""

    kind = "test_teacher"

    def start(self, now: CurrentTask, memory: ClassGaussians) -> nn.Module:
        return LiveTeacher(now.network)


class LiveTeacher(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(network.extractor).requires_grad_(False)
        self.projector = nn.Linear(3, 3)
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, step: Step) -> Tensor:
        self.modes.add((self.teacher.training, self.projector.training))
        with torch.no_grad():
            pairs = zip(self.teacher.parameters(), step.now.network.extractor.parameters(), strict=True)
            for mean, value in pairs:
                mean.lerp_(value, 0.1)
        return F.mse_loss(self.projector(step.features), self.teacher.learned(step.maps))


def test_a_teacher_of_a_term_stays_in_evaluation_mode_and_is_trained_and_resumed_with_the_network() -> None:
    part = Representation(first=Recipe(epochs=3, batch_size=8), terms={"ce": CrossEntropy(), "mean": Teacher()})
    whole = tiny_task()
    part.fit(whole, ClassGaussians(3))
    live = whole.trained["mean"]
    assert isinstance(live, LiveTeacher)
    assert live.modes == {(False, True)}
    snapshots = KeptInMemory(stop_after=1)
    with pytest.raises(InterruptedRunError):
        part.fit(tiny_task(snapshots), ClassGaussians(3))
    snapshots.stop_after = None
    resumed = tiny_task(snapshots)
    part.fit(resumed, ClassGaussians(3))
    assert same(live.state_dict(), resumed.trained["mean"].state_dict())


def test_a_loss_that_is_not_one_number_names_the_term() -> None:
    class PerImage(CrossEntropy):
        kind = "test_per_image"

        def loss(self, step: Step, before: State | None = None) -> Tensor:
            return step.features.sum(1)

    with pytest.raises(ConfigError, match=r"'wrong' has the shape \(8,\)"):
        Representation(first=Recipe(batch_size=8), terms={"wrong": PerImage()}).fit(tiny_task(), ClassGaussians(3))


class TinyTrunk(Backbone):
    def __init__(self) -> None:
        super().__init__(6)
        self.linear = nn.Linear(16, 6)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.linear(images.flatten(1)))


def tiny_task(snapshots: KeptInMemory | None = None) -> CurrentTask:
    torch.manual_seed(0)
    network = Network(Extractor(TinyTrunk(), BackboneConfig(features=3), (0.5,), (0.5,)), IncrementalHead(3))
    pixels = torch.randint(0, 256, (24, 1, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    data = LabelledImages(ArrayImages(pixels), torch.arange(24) % 2, ("a", "b"))
    return CurrentTask(0, data, network, None, Augmentation.none(), runtime(snapshots))


def learn(recipe: Recipe, snapshots: KeptInMemory | None = None, **settings: Any) -> tuple[Network, Network]:
    """The network before and after training; the head's start is part of the training."""
    now = tiny_task(snapshots)
    before = copy.deepcopy(now.network)
    terms = {"cross_entropy": CrossEntropy(), "anti_collapse": AntiCollapse()}
    Representation(first=recipe, terms=terms, **settings).fit(now, ClassGaussians(3))
    return before, now.network


def test_head_warmup_leaves_the_extractor_alone() -> None:
    snapshots = KeptInMemory()
    before, after = learn(Recipe(epochs=4, batch_size=8, head_warmup=0.5), snapshots)
    start = before.extractor.state_dict()
    for epoch, (tensors, _) in enumerate(snapshots.offers):
        prefix = "module.network.extractor."
        found = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        assert same(found, start) == (epoch < 2)
    heads = [tensors["module.network.head.blocks.0.weight"] for tensors, _ in snapshots.offers]
    assert not torch.equal(heads[0], heads[1])
    assert not same(after.extractor.state_dict(), start)


def updates(**settings: Any) -> dict[str, Tensor]:
    """What one plain gradient step changes in the extractor."""
    recipe = Recipe(epochs=1, batch_size=24, momentum=0, weight_decay=0, schedule="constant", learning_rate=0.1)
    before, after = learn(recipe, **settings)
    old, new = before.extractor.state_dict(), after.extractor.state_dict()
    return {name: new[name] - old[name] for name in new}


@pytest.mark.parametrize(
    ("full_rate", "slow"),
    [
        ("bottleneck", {"trunk.linear.weight", "trunk.linear.bias"}),
        ("bottleneck_bias", {"trunk.linear.weight", "trunk.linear.bias", "bottleneck.weight"}),
    ],
)
def test_trunk_rate_slows_what_is_not_new(full_rate: str, slow: set[str]) -> None:
    alike, slowed = updates(full_rate=full_rate), updates(full_rate=full_rate, trunk_rate=0.1)
    for name, update in alike.items():
        assert float(update.norm()) > 0
        expected = 0.1 * update if name in slow else update
        torch.testing.assert_close(slowed[name], expected, rtol=1e-3, atol=1e-6)
