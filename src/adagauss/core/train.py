"""The training loop: schedule, clipping, precision, progress, snapshots."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from adagauss.core.config import KIND, Config
from adagauss.core.gaussians import ClassGaussians
from adagauss.distributed.batch_norm import shared_batch_norm
from adagauss.distributed.processes import Processes
from adagauss.errors import ConfigError, NumericalError, unknown_name
from adagauss.utils.registry import module_name
from adagauss.utils.runtime import Runtime, to_device

Fraction = Annotated[float, Field(ge=0, le=1)]
History = list[dict[str, float]]
Named = str | dict[str, Any]
"""The name of a class, or its name as ``kind`` and its options."""
SCHEDULES = ("milestones", "cosine", "one_cycle", "constant")


class Recipe(Config):
    """Settings of one training: epochs, batches, optimizer and schedule."""

    epochs: PositiveInt = 200
    batch_size: PositiveInt = 256
    optimizer: Named = "sgd"
    """A class of `torch.optim` in any case, such as ``adamw``; with options, or from another module, its
    ``kind``: ``optimizer.kind=adamw`` and ``optimizer.betas=[0.9,0.95]``, or ``optimizer.kind=mine:Lion``."""
    learning_rate: PositiveFloat = 0.1
    momentum: Fraction = 0.9
    """Of SGD; other optimizers have their own options."""
    weight_decay: NonNegativeFloat = 5e-4
    schedule: Named = "milestones"
    """``milestones``; ``cosine`` or ``one_cycle``, which change the rate at every step; ``constant``; or a class of
    `torch.optim.lr_scheduler`, which changes it after every epoch: ``schedule.kind=exponentiallr`` and
    ``schedule.gamma=0.9``."""
    warmup: Fraction = 0.0
    """Share of all steps, at the start, in which the learning rate rises linearly from a hundredth of its value."""
    milestones: tuple[NonNegativeFloat, ...] = (0.3, 0.6, 0.9)
    """When the learning rate is multiplied by ``decay``: up to 1 a fraction of the epochs, above 1 an epoch."""
    decay: PositiveFloat = 0.1
    clip_norm: PositiveFloat | None = None
    """Largest global norm of all gradients together."""
    head_warmup: Fraction = 0.0
    """Share of the epochs, at the start, in which features are detached: only the head and helpers learn."""
    drop_last: bool = True
    """Skip the last, smaller batch of an epoch, unless it is the only one."""

    @field_validator("schedule")
    @classmethod
    def _by_name(cls, schedule: Named) -> Named:
        return next((name for name in SCHEDULES if schedule == {KIND: name}), schedule)

    @model_validator(mode="after")
    def _can_be_built(self) -> Recipe:
        if self.optimizer in ("sgd", "adam") and self.schedule in SCHEDULES:
            return self
        weight = nn.Parameter(torch.zeros(2, 2))
        weight.grad = torch.zeros(2, 2)
        try:
            optimizer = make_optimizer(self, [{"params": [weight], "lr": self.learning_rate}])
            optimizer.step()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"the optimizer {self.optimizer!r} cannot be used: {error}") from None
        try:
            after_epoch(make_scheduler(self, optimizer), optimizer, [self.learning_rate], 1.0)
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
            raise ConfigError(
                f"the schedule {self.schedule!r} cannot be used with the optimizer {self.optimizer!r}: {error}"
            ) from None
        return self

    @property
    def warm_epochs(self) -> int:
        # The 1e-9 guards products such as 0.29 · 100, which are slightly below the integer.
        return int(self.head_warmup * self.epochs + 1e-9)

    @property
    def drops(self) -> list[int]:
        """The epochs, from 0, at which the learning rate drops."""
        epochs = [math.floor(one * self.epochs + 1e-9) if one <= 1 else math.floor(one) for one in self.milestones]
        return [epoch for epoch in epochs if epoch > 0]


class Batches(Protocol):
    """The batches of an epoch."""

    def __len__(self) -> int:
        """Batches per epoch."""

    def epoch(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """The pass of number ``epoch``, in an order and with augmentations drawn from ``generator``."""


class Objective(nn.Module):
    """The trained modules and their loss: calling it with a batch returns named losses, whose sum is minimised.

    Training wraps it as a whole (precision, several processes). A snapshot holds its parameters and buffers.
    """

    divided: ClassVar[bool] = False
    """Whether each process has only its share of a batch, and computes the losses of the whole batch with
    `Sharding.all_gather`. If False, every process trains on the same whole batches."""

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Parameter groups for the optimizer, each with its own learning rate; by default, one group."""
        return [{"params": [p for p in self.parameters() if p.requires_grad], "lr": learning_rate}]

    def begin_epoch(self, epoch: int, generator: torch.Generator) -> None:
        """Called before each epoch; ``generator`` is for all randomness of the losses."""


def batch_bounds(total: int, size: int, drop_last: bool) -> list[tuple[int, int]]:
    """Start and stop of each batch. A single last image joins the batch before it: one image has no batch statistics.

    >>> batch_bounds(9, 4, drop_last=False), batch_bounds(10, 4, drop_last=True)
    ([(0, 4), (4, 9)], [(0, 4), (4, 8)])
    """
    bounds = [(start, min(start + size, total)) for start in range(0, total, size)]
    if len(bounds) > 1:
        start, stop = bounds[-1]
        if drop_last and stop - start < size:
            bounds.pop()
        elif stop - start == 1:
            bounds[-2:] = [(bounds[-2][0], stop)]
    return bounds


class TensorBatches:
    """Batches of tensors that an epoch computes at once, such as draws from Gaussians or features of an augmented view.

    An epoch passes over them several times if all epochs together would have fewer than ``min_steps`` batches.

    Args:
        source: the tensors of an epoch, from its number and a generator.
        rows: their number of rows.
        recipe: batch size and number of epochs.
        min_steps: minimum number of batches of all epochs together.
        shuffle: off for rows that are in random order already.
    """

    def __init__(
        self,
        source: Callable[[int, torch.Generator], tuple[Tensor, ...]],
        rows: int,
        recipe: Recipe,
        min_steps: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.source, self.rows, self.shuffle = source, rows, shuffle
        self.bounds = batch_bounds(rows, recipe.batch_size, recipe.drop_last)
        self.passes = max(1, math.ceil(min_steps / (recipe.epochs * len(self.bounds))))

    def __len__(self) -> int:
        return self.passes * len(self.bounds)

    def epoch(self, epoch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        tensors = self.source(epoch, generator)
        for _ in range(self.passes):
            order = torch.randperm(self.rows, generator=generator) if self.shuffle else torch.arange(self.rows)
            order = to_device(order, tensors[0].device)
            for start, stop in self.bounds:
                yield tuple(tensor[order[start:stop]] for tensor in tensors)


def torch_class(sort: str, spec: Named, module: str, base: type) -> tuple[type[Any], dict[str, Any]]:
    """The class that a setting names, of ``module`` in any case or ``module:Class``, and its options."""
    options = {KIND: spec} if isinstance(spec, str) else dict(spec)
    name = str(options.pop(KIND, ""))
    own, _, local = name.rpartition(":")
    own = module_name(own)
    if own and own not in sys.modules:  # a saved file must not choose what is imported
        raise ConfigError(f"the module {own!r} of the {sort} {local!r} is not imported: import it first")
    found = {
        key.lower(): value
        for key, value in vars(sys.modules[own or module]).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base and not key.startswith("_")
    }
    if local.lower() not in found:
        raise unknown_name(sort, name, [*found, *(SCHEDULES if sort == "schedule" else ())])
    return found[local.lower()], options


def make_optimizer(recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer of a recipe for parameter groups."""
    build, options = torch_class("optimizer", recipe.optimizer, "torch.optim", torch.optim.Optimizer)
    settings = {"weight_decay": recipe.weight_decay}
    if build is torch.optim.SGD:
        settings["momentum"] = recipe.momentum
    accepted = inspect.signature(build).parameters
    given = {name: value for name, value in settings.items() if name in accepted} | options
    optimizer: torch.optim.Optimizer = build(groups, lr=recipe.learning_rate, **given)
    return optimizer


def make_scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
    """The scheduler of torch that a recipe names; None for `SCHEDULES`, which `rate_factor` computes."""
    if recipe.schedule in SCHEDULES:
        return None
    build, options = torch_class("schedule", recipe.schedule, "torch.optim.lr_scheduler", LRScheduler)
    lengths = {name: recipe.epochs for name in ("T_max", "total_steps") if name in inspect.signature(build).parameters}
    scheduler: LRScheduler = build(optimizer, **lengths | options)
    return scheduler


def after_epoch(
    scheduler: LRScheduler | None, optimizer: torch.optim.Optimizer, rates: list[float], loss: float
) -> list[float]:
    """The rates of the next epoch before warm-up, from those of this one and its mean loss."""
    if scheduler is None:
        return rates
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    with warnings.catch_warnings():  # a resumed training repeats the steps of the scheduler alone
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(loss)
        else:
            scheduler.step()
    return [group["lr"] for group in optimizer.param_groups]


def rate_factor(recipe: Recipe, epoch: int, progress: float) -> float:
    """Learning rate relative to the recipe's; ``progress`` in 0..1 is the share of all steps done."""
    rise = 0.01 + 0.99 * progress / recipe.warmup if progress < recipe.warmup else 1.0
    return rise * schedule_factor(recipe, epoch, progress)


def schedule_factor(recipe: Recipe, epoch: int, progress: float) -> float:
    """`rate_factor` without warm-up."""
    if recipe.schedule == "milestones":
        return recipe.decay ** sum(epoch >= drop for drop in recipe.drops)
    if recipe.schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    if recipe.schedule == "one_cycle":
        rise = 0.25
        if progress < rise:
            return 0.04 + 0.96 * progress / rise
        return max(1e-4, (1 + math.cos(math.pi * (progress - rise) / (1 - rise))) / 2)
    return 1.0


def train(objective: Objective, batches: Batches, recipe: Recipe, runtime: Runtime, stage: str) -> History:
    """Minimise the sum of the objective's losses; returns the mean of each loss per epoch.

    Random numbers and snapshots are keyed by ``stage``, the name of this training within the run: resumed from a
    snapshot, it gives the same numbers as without interruption.
    """
    fabric = (runtime.processes.fabric if objective.divided else None) or runtime.fabric
    groups = objective.parameter_groups(recipe.learning_rate)
    try:
        bare = make_optimizer(recipe, groups)
    except ValueError as error:  # such as a parameter of a shape that it does not support
        raise ConfigError(f"{stage}: the optimizer {recipe.optimizer!r} cannot train this network: {error}") from error
    history, start = _resume(objective, bare, runtime, stage)
    scheduler = make_scheduler(recipe, bare)
    rates = [group["lr"] for group in bare.param_groups]
    for means in history:
        rates = after_epoch(scheduler, bare, rates, sum(means.values()))
    wrapped, optimizer = fabric.setup(objective, bare)
    total_steps = recipe.epochs * len(batches)
    together = runtime.processes if objective.divided else Processes()
    with runtime.reporter.progress(stage, recipe.epochs) as advance, shared_batch_norm(objective, together):
        for _ in range(start):
            advance("resumed")
        for epoch in range(start, recipe.epochs):
            generator = runtime.generator(stage, "epoch", epoch)
            wrapped.train()
            objective.begin_epoch(epoch, generator)
            sums: dict[str, Tensor] = {}  # of each loss: its values, and how many are not finite
            for step, batch in enumerate(batches.epoch(epoch, generator)):
                factor = rate_factor(recipe, epoch, (epoch * len(batches) + step) / total_steps)
                for group, rate in zip(bare.param_groups, rates, strict=True):
                    group["lr"] = rate * factor
                with runtime.seeded(stage, "global", epoch, step):
                    losses: dict[str, Tensor] = wrapped(*batch)
                loss = torch.stack([term.float() for term in losses.values()]).sum()
                optimizer.zero_grad()
                if loss.requires_grad:
                    fabric.backward(loss)
                    if recipe.clip_norm is not None:
                        fabric.clip_gradients(wrapped, optimizer, max_norm=recipe.clip_norm, error_if_nonfinite=False)
                    optimizer.step()
                advance(step=1 / len(batches))
                for name, term in losses.items():
                    value = term.detach().float()
                    both = torch.stack((value, (~value.isfinite()).float()))
                    sums[name] = sums.get(name, torch.zeros_like(both)) + both
            found = torch.stack(list(sums.values())).tolist() if sums else []  # the device is read once per epoch
            means = {name: total / max(1, len(batches)) for name, (total, _) in zip(sums, found, strict=True)}
            _check_finite(means, [bad for _, bad in found], stage, epoch)
            history.append(means)
            rates = after_epoch(scheduler, bare, rates, together.broadcast(partial(sum, means.values())))
            if runtime.tracker is not None:
                runtime.tracker.epoch(stage, epoch, means)
            advance(" ".join(f"{name} {value:.3f}" for name, value in means.items()), step=0)
            if runtime.snapshots is not None:
                tensors, facts = _snapshot(objective, bare, history)
                runtime.snapshots.offer(stage, tensors, facts)
    objective.eval().zero_grad()
    return history


def _check_finite(means: dict[str, float], counts: list[float], stage: str, epoch: int) -> None:
    if not all(map(math.isfinite, means.values())):
        # One bad loss spoils the weights, and then all losses: it is the one that was not finite for longest.
        name = max(zip(means, counts, strict=True), key=lambda one: one[1])[0]
        raise NumericalError(
            f"{stage}: the loss {name!r} is not finite in epoch {epoch + 1}; lower the learning rate, set "
            "clip_norm=1, or lower the weight of the term"
        )


def _snapshot(
    module: nn.Module, optimizer: torch.optim.Optimizer, history: History
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"module.{name}": value for name, value in module.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if value is not None:
                tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    # Some optimizers without a schedule count their steps in the groups.
    groups = [
        {name: value for name, value in group.items() if isinstance(value, int | float) and math.isfinite(value)}
        for group in optimizer.param_groups
    ]
    return tensors, {"history": history, "groups": groups}


def _resume(module: nn.Module, optimizer: torch.optim.Optimizer, runtime: Runtime, stage: str) -> tuple[History, int]:
    found = runtime.processes.broadcast(lambda: runtime.snapshots and runtime.snapshots.load(stage))
    if found is None:
        return [], 0
    tensors, facts = found
    prefix = "module."
    module.load_state_dict({name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)})
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    for group, stored in zip(groups, facts.get("groups", ()), strict=False):
        group.update(stored, lr=group["lr"])
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    history = list(facts["history"])
    return history, len(history)


def mlp(features: int, width: int) -> nn.Module:
    """Linear(S, d·S) → GELU → Linear(d·S, S)."""
    return nn.Sequential(nn.Linear(features, width * features), nn.GELU(), nn.Linear(width * features, features))


class Sampler:
    """Draws of N(μ_c, Σ_c + εI) for any list of classes, in float32."""

    def __init__(self, bank: ClassGaussians, jitter: float = 0.0) -> None:
        self.means = bank.means.float()
        self.factors = bank.factors(jitter, torch.float32)

    def draw(self, classes: Tensor, generator: torch.Generator) -> Tensor:
        """One draw per entry of ``classes``, which are positions in the bank."""
        device = self.means.device
        noise = to_device(torch.randn(len(classes), self.means.shape[1], generator=generator), device)
        draws = self.means[to_device(classes, device)]
        # One product per class: gathering a factor for every draw would take S² numbers per draw.
        for index in sorted(set(classes.tolist())):
            rows = to_device(torch.nonzero(classes == index).flatten(), device)
            draws[rows] += noise[rows] @ self.factors[index].T
        return draws
