"""The representation part: how the extractor learns a task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PositiveFloat, model_validator
from torch import Tensor, nn

from adagauss.backbones import IncrementalHead, Network
from adagauss.backbones.head import HeadKind
from adagauss.core.config import Part, Requirement, part_of
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask, ImageBatches
from adagauss.core.train import History, Recipe, train
from adagauss.data.images import Label
from adagauss.errors import ConfigError, DataError
from adagauss.representation.label_augmentation import LabelAugmentation, NoLabelAugmentation
from adagauss.representation.objective import LiveParts, TaskObjective
from adagauss.representation.reparameterisation import NoReparameterisation, Reparameterisation
from adagauss.representation.step import Term


def _as_terms(value: Any) -> Any:
    """Terms from plain data; a term that is null is removed."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: spec if isinstance(spec, Term) else Part.build("term", spec, f"representation.terms.{name}")
        for name, spec in value.items()
        if spec is not None
    }


class Trained(NamedTuple):
    """A trained task; its live parts are used until the rest of the task is done."""

    history: History
    parts: LiveParts | None
    """None if nothing was trained."""


class Representation(Part):
    """Trains the network on the current task with a sum of weighted terms.

    The first task may have its own recipe; ``later=None`` freezes the extractor after it.
    """

    role: ClassVar[str] = "representation"
    kind = "trained"

    first: Recipe | None = Field(default_factory=Recipe)
    """How the first task is trained; None: nothing is ever trained, the network keeps its initial weights."""
    later: Recipe | None = Field(default_factory=Recipe)
    heads: Literal["discard", "keep"] = "discard"
    """Whether the classification outputs of finished tasks are kept."""
    train_old_heads: bool = False
    head: HeadKind = "linear"
    """Outputs w·x + b, or σ·cos(x, w) with a learned σ."""
    head_bias: bool = True
    """Whether linear outputs have a bias b."""
    keep_auxiliary: bool = False
    """Whether auxiliary outputs (rotations) are kept after their task."""
    label_augmentation: Annotated[
        LabelAugmentation, part_of("label_augmentation", "representation.label_augmentation")
    ] = Field(default_factory=NoLabelAugmentation)
    reparameterisation: Annotated[
        Reparameterisation, part_of("reparameterisation", "representation.reparameterisation")
    ] = Field(default_factory=NoReparameterisation)
    terms: Annotated[dict[str, Term], BeforeValidator(_as_terms)] = Field(default_factory=dict)
    trunk_rate: PositiveFloat = 1.0
    """Learning rate of the trunk relative to that of new layers; below 1 for pretrained weights."""
    full_rate: Literal["bottleneck", "bottleneck_bias"] = "bottleneck"
    """What counts as new besides the head: the bottleneck, or only its bias (the published code)."""

    @model_validator(mode="after")
    def _can_be_trained(self) -> Representation:
        if self.first is None and self.later is not None:
            raise ConfigError("later tasks are trained only after the first: set representation.later=null as well")
        if self.first is not None and not self.terms:
            raise ConfigError("there is no loss to train with: add at least representation.terms.cross_entropy")
        return self

    @property
    def provides(self) -> frozenset[Requirement]:
        given = {Requirement.LINEAR_HEAD} if self.head == "linear" else set()
        if self.later is None:
            given.add(Requirement.FROZEN_FEATURES)
        elif self.heads == "keep":
            given.add(Requirement.KEPT_HEADS)
        return frozenset(given)

    def subparts(self) -> Iterator[tuple[str, Part]]:
        """Every part within this one, with the name of its state."""
        yield "label_augmentation", self.label_augmentation
        yield "reparameterisation", self.reparameterisation
        for name, term in self.terms.items():
            yield f"terms/{name}", term

    def shares(self, before: Mapping[str, State]) -> dict[str, Tensor]:
        """Tensors of earlier tasks that the terms let other parts read."""
        shared: dict[str, Tensor] = {}
        for name, term in self.terms.items():
            if (state := before.get(f"terms/{name}")) is not None:
                shared.update(term.shares(state))
        return shared

    def head_of(
        self, head: IncrementalHead, tasks: Sequence[Sequence[Label]], kept: Collection[Label]
    ) -> IncrementalHead:
        """A new head after a change of the classes of ``tasks``, of which ``kept`` are left.

        Where outputs are kept, those of the other classes go: there is one block for each task that has classes.
        Otherwise no output is used after its task, and all go.
        """
        if self.heads == "discard" or self.later is None:
            return head.select([()] * len(head.blocks))
        classes = [task for task in tasks if task]
        return head.select([[row for row, label in enumerate(task) if label in kept] for task in classes])

    def fit(self, now: CurrentTask, memory: ClassGaussians, before: Mapping[str, State]) -> Trained:
        """Train ``now.network`` in place on the task; ``before`` holds the subparts' states of the last task."""
        recipe = self.first if now.first else self.later
        if recipe is None:
            return Trained([], None)
        if len(now.data) < 2:
            raise DataError(f"{now.name} has a single image: give at least two to train on")
        network = now.network
        if self.heads == "discard":
            network.head.clear()
        elif not self.train_old_heads:
            network.head.hold()
        auxiliary = self.label_augmentation.auxiliary_outputs(len(now.classes), now.first)
        with now.runtime.seeded(now.name, "initialisation"):
            network.head.grow(len(now.classes), auxiliary)
            now.runtime.place(network)
            parts = self._start(now, memory, before)
        weights = {name: term.weight for name, term in self.terms.items()}
        objective = TaskObjective(now, memory, parts, weights, recipe, self.parameter_groups)
        batch_size = max(1, recipe.batch_size // self.label_augmentation.copies(now.first))
        batches = ImageBatches(now.data, now.augmentation, now.runtime, batch_size, recipe.drop_last)
        history = train(objective, batches, recipe, now.runtime, f"{now.name}: training")
        parts.reparameterisation.settle(now)
        if not self.keep_auxiliary:
            network.head.drop_auxiliary()
        return Trained(history, parts)

    def _start(self, now: CurrentTask, memory: ClassGaussians, before: Mapping[str, State]) -> LiveParts:
        reparameterisation = self.reparameterisation.start(now, before.get("reparameterisation"))
        terms = {name: term.start(now, memory, before.get(f"terms/{name}")) for name, term in self.terms.items()}
        augmentation = self.label_augmentation.start(now, before.get("label_augmentation"))
        return now.runtime.place(LiveParts(terms, augmentation, reparameterisation))

    def finish(self, parts: LiveParts, now: CurrentTask, memory: ClassGaussians) -> dict[str, State]:
        """Let the parts measure the finished task; returns their states for the next task by name."""
        live = {
            "label_augmentation": parts.label_augmentation,
            "reparameterisation": parts.reparameterisation,
            **{f"terms/{name}": term for name, term in parts.live().items()},
        }
        states = {name: part.finish(now, memory) for name, part in live.items()}
        return {name: state for name, state in states.items() if state is not None}

    def parameter_groups(self, network: Network, beside: nn.Module, learning_rate: float) -> list[dict[str, Any]]:
        """The trunk at its own learning rate; head, bottleneck and helper modules at the full rate."""
        new = {
            id(parameter)
            for name, parameter in network.extractor.bottleneck.named_parameters()
            if self.full_rate == "bottleneck" or name == "bias"
        }
        slow: list[nn.Parameter] = []
        full = [*network.head.parameters(), *beside.parameters()]
        for parameter in network.extractor.parameters():
            (full if id(parameter) in new else slow).append(parameter)
        groups = [
            {"params": [p for p in slow if p.requires_grad], "lr": learning_rate * self.trunk_rate},
            {"params": [p for p in full if p.requires_grad], "lr": learning_rate},
        ]
        return [group for group in groups if group["params"]]
