"""The representation part: how the extractor learns a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, PositiveFloat, model_validator
from torch import Tensor, nn

from adagauss.config import Part, State, part_of
from adagauss.errors import ConfigError, DataError
from adagauss.gaussians import ClassGaussians
from adagauss.representation.expansion import Expansion, NoExpansion
from adagauss.representation.step import Step, Term
from adagauss.representation.terms.distillation import Distillation
from adagauss.representation.tuning import FullTuning, Tuning
from adagauss.task import CurrentTask, ImageBatches
from adagauss.training import History, Recipe, train

TUNED = "beside the extractor"
"""Where helpers hold the module that the tuning brought; no term has this name."""


def _as_terms(value: Any) -> Any:
    """Terms from plain data; a term set to null is left out."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: spec if isinstance(spec, Term) else Part.build("term", spec, f"representation.terms.{name}")
        for name, spec in value.items()
        if spec is not None
    }


class Representation(Part):
    """Trains the network on the current task with a sum of weighted terms.

    The first task may have a recipe of its own; ``later=None`` freezes the extractor after it.
    """

    role: ClassVar[str] = "representation"
    kind = "trained"

    first: Recipe = Field(default_factory=Recipe)
    later: Recipe | None = Field(default_factory=Recipe)
    heads: Literal["discard", "keep"] = "discard"
    """Whether the classification outputs of finished tasks are kept."""
    train_old_heads: bool = False
    head_bias: bool = True
    keep_auxiliary: bool = False
    """Whether auxiliary outputs (rotations) survive their task."""
    expansion: Annotated[Expansion, part_of("expansion", "representation.expansion")] = Field(
        default_factory=NoExpansion
    )
    tuning: Annotated[Tuning, part_of("tuning", "representation.tuning")] = Field(default_factory=FullTuning)
    terms: Annotated[dict[str, Term], BeforeValidator(_as_terms)] = Field(default_factory=dict)
    trunk_rate: PositiveFloat = 1.0
    """Learning rate of the trunk relative to new layers; below 1 for pretrained weights."""
    full_rate: Literal["bottleneck", "bottleneck_bias"] = "bottleneck"
    """What counts as new beside the head: the bottleneck, or (the published code) its bias alone."""

    @model_validator(mode="after")
    def _logits_need_heads(self) -> Representation:
        old_outputs = any(isinstance(term, Distillation) and term.target == "logit" for term in self.terms.values())
        if old_outputs and self.heads == "discard":
            raise ConfigError("logit distillation compares old outputs: set representation.heads=keep as well")
        return self

    def annotate(self, now: CurrentTask) -> None:
        """Let the terms leave what they know of earlier tasks in the notes of this one."""
        for term in self.terms.values():
            term.annotate(now)

    def fit(self, now: CurrentTask, memory: ClassGaussians) -> History:
        """Train the network in place on the task; returns the losses per epoch."""
        self.annotate(now)
        recipe = self.first if now.first else self.later
        if recipe is None:
            return []
        network = now.network
        if self.heads == "discard":
            network.head.clear()
        elif not self.train_old_heads:
            network.head.requires_grad_(False)
        auxiliary = self.expansion.auxiliary_outputs(len(now.classes), now.first)
        torch.manual_seed(now.runtime.seed_for(now.name, "initialisation"))
        network.head.grow(len(now.classes), auxiliary)
        now.runtime.place(network)
        beside = self.tuning.begin(now)
        helpers = {name: helper for name, term in self.terms.items() if (helper := term.begin(now, memory)) is not None}
        if beside is not None:
            helpers[TUNED] = beside
        objective = _TaskObjective(self, recipe, now, memory, nn.ModuleDict(helpers))
        batch_size = max(1, recipe.batch_size // self.expansion.copies(now.first))
        batches = ImageBatches(now.data, now.augmentation, now.runtime, batch_size, recipe.drop_last)
        if not self.terms:
            raise ConfigError("there is nothing to train towards: give representation.terms at least cross_entropy")
        if len(now.data) < 2:
            raise DataError(f"{now.name} has a single image: give at least two to train on")
        history = train(objective, batches, recipe, now.runtime, f"{now.name}: training")
        self.tuning.end(now)
        if not self.keep_auxiliary:
            network.head.drop_auxiliary()
        for term in self.terms.values():
            term.end(now, memory)
        return history

    def finish(self, now: CurrentTask, memory: ClassGaussians) -> None:
        """Let the terms measure the finished task: drift, memory and classifier are done."""
        for term in self.terms.values():
            term.finish(now, memory)

    def state_dict(self) -> State:
        return {f"{name}.{key}": value for name, term in self.terms.items() for key, value in term.state_dict().items()}

    def load_state_dict(self, state: State) -> None:
        for name, term in self.terms.items():
            prefix = f"{name}."
            term.load_state_dict({key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)})


class _TaskObjective:
    """L = Σ weight · term over one task: L_CE + α·L_AC + λ·L_PKD for AdaGauss."""

    def __init__(
        self, part: Representation, recipe: Recipe, now: CurrentTask, memory: ClassGaussians, helpers: nn.ModuleDict
    ) -> None:
        self.part = part
        self.recipe = recipe
        self.now = now
        self.memory = memory
        self.module = nn.ModuleDict({"network": now.network, "helpers": helpers})
        self._helpers = helpers
        self._extract: Callable[[Tensor], Tensor] = now.runtime.compiled(now.network.extractor)
        self._warm = False
        self._generator = torch.Generator()

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        network = self.now.network
        bottleneck = dict(network.extractor.bottleneck.named_parameters())
        new = {
            id(parameter)
            for name, parameter in bottleneck.items()
            if self.part.full_rate == "bottleneck" or name == "bias"
        }
        slow: list[nn.Parameter] = []
        full = [*network.head.parameters(), *self._helpers.parameters()]
        for parameter in network.extractor.parameters():
            (full if id(parameter) in new else slow).append(parameter)
        groups = [
            {"params": [p for p in slow if p.requires_grad], "lr": learning_rate * self.part.trunk_rate},
            {"params": [p for p in full if p.requires_grad], "lr": learning_rate},
        ]
        return [group for group in groups if group["params"]]

    def begin_epoch(self, epoch: int, generator: torch.Generator) -> None:
        self._warm = epoch < self.recipe.warm_epochs
        self._generator = generator
        for term in self.part.terms.values():
            term.begin_epoch()

    def losses(self, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        images, targets = batch
        images, targets = self.part.expansion.expand(
            images, targets, len(self.now.classes), self.now.first, self._generator
        )
        step = Step(images, targets, self.now, self.memory, self._generator, self._extract, self._warm, len(batch[0]))
        losses = {}
        for name, term in self.part.terms.items():
            value = term.loss(step) if term.weight else None
            if value is not None:
                losses[name] = term.weight * value
        return losses
