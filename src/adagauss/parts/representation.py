"""The representation part: how the extractor learns a task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, model_validator
from torch import Tensor, nn

from adagauss.backbones import IncrementalHead, Network
from adagauss.backbones.head import HeadKind
from adagauss.core.config import Part, Requirement, part_of
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask, ImageBatches
from adagauss.core.train import History, Objective, Recipe, train
from adagauss.data.images import Label
from adagauss.distributed.processes import Sharding
from adagauss.errors import ConfigError, DataError
from adagauss.utils.runtime import to_device

TERMS = "representation/terms/"
"""Start of the names of the loss terms' states."""


class LabelAugmentation(Part):
    """Turns a batch into a larger one, as a function of the batch. This base adds nothing."""

    role: ClassVar[str] = "label_augmentation"
    kind = "none"

    def copies(self, first: bool) -> int:
        """How many times larger a batch becomes; loaders divide their batch size by it. With 1 nothing is done."""
        return 1

    def auxiliary_outputs(self, classes: int, first: bool) -> int:
        """Number of auxiliary labels in a task with ``classes`` classes."""
        return 0

    def augment(
        self, images: Tensor, targets: Tensor, classes: int, first: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """The larger batch, whose added images have auxiliary labels (numbered after the classes)."""
        return images, targets


class Rotations(LabelAugmentation):
    """Every image in its four rotations by 90°; class y turned k times is the label y + k·C."""

    kind = "rotations"
    when: Literal["first", "always"] = "first"

    def copies(self, first: bool) -> int:
        return 4 if first or self.when == "always" else 1

    def auxiliary_outputs(self, classes: int, first: bool) -> int:
        return classes * (self.copies(first) - 1)

    def augment(
        self, images: Tensor, targets: Tensor, classes: int, first: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        copies = self.copies(first)
        if copies > 1 and images.shape[2] != images.shape[3]:
            raise DataError(
                f"images of {images.shape[2]} x {images.shape[3]} pixels cannot be rotated by 90°: make them square, "
                "or set representation.label_augmentation.kind=none"
            )
        turned = torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(copies)])
        return turned, torch.cat([targets + turns * classes for turns in range(copies)])


class Reparameterisation(Part):
    """Prepares the extractor for a task and settles it afterwards. This base lets every weight learn."""

    role: ClassVar[str] = "reparameterisation"
    kind = "none"

    def start(self, now: CurrentTask) -> nn.Module:
        """Prepare ``now.network``; returns a module whose parameters are trained with it."""
        return nn.Module()

    def settle(self, now: CurrentTask, live: nn.Module) -> None:
        """Called with that module right after training, before anything is measured on the network."""


@dataclass
class Step:
    """A batch and its features; what several terms need is computed once and shared.

    Several processes hold their share of the images each. Targets and features are those of the whole batch in all of
    them, so a term may be any function of the whole batch.
    """

    images: Tensor
    """Those of this process."""
    targets: Tensor
    """Positions among the current task's classes, then among its auxiliary outputs."""
    now: CurrentTask
    memory: ClassGaussians
    generator: torch.Generator
    extract: Callable[[Tensor], Tensor]
    detach: bool = False
    originals: int | None = None
    """Number of images in the whole batch before label augmentation; None: as many as ``images``."""
    division: Sharding | None = None
    """Which process holds each image; None if this one holds all."""
    cached: bool = False
    """Whether ``images`` are the output of the frozen layers."""
    starts_epoch: bool = False
    """Training may be resumed here, so data of the batch before must not be used."""

    @cached_property
    def maps(self) -> Tensor:
        """The output of the frozen layers, augmented, which both networks share."""
        extractor = self.now.network.extractor
        maps = self.images if self.cached else extractor.frozen(self.images)
        return maps if extractor.fixed else extractor.trunk.augmented(maps, self.generator)

    @cached_property
    def features(self) -> Tensor:
        """F_t(x); detached during the warm-up of the head."""
        features = self._whole(self.extract(self.maps))
        return features.detach() if self.detach else features

    @cached_property
    def previous_features(self) -> Tensor:
        """F_{t−1}(x), in evaluation mode and without gradient."""
        assert self.now.previous is not None, "the first task has no previous network"
        with torch.no_grad():
            return self._whole(self.now.previous.extractor.learned(self.maps))

    def only(self, chosen: Tensor) -> Step:
        """Some images of the batch, by position, as a batch of their own."""
        images, division = self.images, self.division
        if division is None:
            images = images[chosen]
        else:
            images, division = division.chosen(images, chosen.cpu())
        return replace(self, images=images, targets=self.targets[chosen], division=division)

    def _whole(self, own: Tensor) -> Tensor:
        return own if self.division is None else self.division.all_gather(own)


class Term(Part):
    """A loss term: a function `loss` of a batch and of the state that `finish` returned after the last task.

    A term that trains a helper network, or prepares something for a task, defines `start`.
    """

    role: ClassVar[str] = "term"
    weight: NonNegativeFloat = 1.0

    def start(self, now: CurrentTask, memory: ClassGaussians) -> nn.Module | None:
        """A module that is trained with the network in this task; its ``forward`` takes a `Step` and replaces `loss`.

        Inner modules whose parameters are all frozen, such as an EMA teacher, stay in evaluation mode. After training,
        the drift and `finish` find the module in ``now.trained`` under the name of the term. It must not store the
        network or the memory as attributes: torch would register them as submodules.
        """
        return None

    def loss(self, step: Step, before: State | None = None) -> Tensor | None:
        """The unweighted loss; None if the term does not apply, like distillation in the first task.

        ``before`` is the state after the last task.
        """
        if type(self).start is Term.start:
            raise TypeError(f"{type(self).__name__} must define loss or start")
        return None

    def finish(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> State | None:
        """The state for the next task, measured at the end of this one, after drift, memory and classifier."""
        return None


class TaskObjective(Objective):
    """L = Σ weight · term over one task: L_CE + α·L_AC + λ·L_PKD for AdaGauss.

    Several processes each extract the features of their share of the images, and all compute L from the features of
    all: with any term, and with shares of any size, it is the L of one process.
    """

    divided: ClassVar[bool] = True

    def __init__(
        self,
        now: CurrentTask,
        memory: ClassGaussians,
        part: Representation,
        recipe: Recipe,
        cached: bool,
    ) -> None:
        super().__init__()
        self.network, self.part, self.warm_epochs, self.cached = now.network, part, recipe.warm_epochs, cached
        reparameterisation = part.reparameterisation.start(now)
        started = {name: term.start(now, memory) for name, term in part.terms.items()}
        self.live = {name: module for name, module in started.items() if module is not None}
        """Modules of terms that have one for this task, by the name of the term."""
        self.parts = nn.ModuleDict({"terms": nn.ModuleDict(self.live), "reparameterisation": reparameterisation})
        """Their parameters are trained with the network."""
        # In a tuple, so that torch registers neither the memory nor a compiled network as a submodule.
        self._context = (now, memory, now.runtime.compiled(now.network.extractor.learned))
        self._warm = self._starts_epoch = False
        self._generator = torch.Generator()

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return self.part.parameter_groups(self.network, self.parts, learning_rate, self._context[0].first)

    def begin_epoch(self, epoch: int, generator: torch.Generator) -> None:
        self._warm, self._starts_epoch = epoch < self.warm_epochs, True
        self._generator = generator

    def train(self, mode: bool = True) -> TaskObjective:
        super().train(mode)
        for module in self.parts["terms"].modules():
            parameters = list(module.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()
        return self

    def forward(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        now, memory, _ = self._context
        originals = len(targets)
        images, targets, division = self._enlarged(images, targets)
        step = Step(
            images,
            targets,
            now,
            memory,
            self._generator,
            self._extract,
            detach=self._warm,
            originals=originals,
            division=division,
            cached=self.cached,
            starts_epoch=self._starts_epoch,
        )
        self._starts_epoch = False
        losses = {}
        for name, term in self.part.terms.items():
            if term.weight:
                live = self.live.get(name)
                value = term.loss(step, now.term_states.get(name)) if live is None else live(step)
                if value is not None:
                    if value.shape:
                        raise ConfigError(
                            f"the loss {name!r} has the shape {tuple(value.shape)}: return one number, such as its mean"
                        )
                    losses[name] = term.weight * value
        return losses

    def _enlarged(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Sharding]:
        """The batch after label augmentation, and how it is divided between processes.

        A label augmentation may mix any images, so it gets those of all processes.
        """
        now, augmentation = self._context[0], self.part.label_augmentation
        runtime, classes = now.runtime, len(now.classes)
        division = runtime.processes.divide(len(targets))
        if augmentation.copies(now.first) == 1:
            return images, targets, division
        images = division.all_gather(images)
        images, targets = augmentation.augment(images, targets, classes, now.first, self._generator)
        division = runtime.processes.divide(len(targets))
        if not runtime.processes.alone:
            images = images[to_device(division.rows, images.device)].contiguous(memory_format=runtime.memory_format)
        return images, targets, division

    def _extract(self, maps: Tensor) -> Tensor:
        """Features of this process's images; dropout must not be the same in every process."""
        now, _, learned = self._context
        if now.runtime.processes.alone:
            return learned(maps)
        with now.runtime.seeded(torch.initial_seed(), now.runtime.processes.rank):
            return learned(maps)


def _as_terms(value: Any) -> Any:
    """Terms from plain data; a term that is null is removed."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: spec if isinstance(spec, Term) else Part.build("term", spec, f"representation.terms.{name}")
        for name, spec in value.items()
        if spec is not None
    }


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
    ] = Field(default_factory=LabelAugmentation)
    reparameterisation: Annotated[
        Reparameterisation, part_of("reparameterisation", "representation.reparameterisation")
    ] = Field(default_factory=Reparameterisation)
    terms: Annotated[dict[str, Term], BeforeValidator(_as_terms)] = Field(default_factory=dict)
    trunk_rate: PositiveFloat = 1.0
    """Learning rate of the trunk relative to that of new layers; below 1 for pretrained weights."""
    later_trunk_rate: PositiveFloat | None = None
    """The same for the tasks after the first; None: ``trunk_rate``."""
    full_rate: Literal["bottleneck", "bottleneck_bias"] = "bottleneck"
    """What counts as new besides the head: the bottleneck, or only its bias (the published code)."""

    @model_validator(mode="after")
    def _can_be_trained(self) -> Representation:
        if self.first is None and self.later is not None:
            raise ConfigError("later tasks are trained only after the first: set representation.later=null as well")
        if self.first is not None and not self.terms:
            raise ConfigError("training needs a loss: add at least representation.terms.cross_entropy")
        return self

    @property
    def provides(self) -> frozenset[Requirement]:
        given = {Requirement.LINEAR_HEAD} if self.head == "linear" else set()
        if self.later is None:
            given.add(Requirement.FROZEN_FEATURES)
        elif self.heads == "keep":
            given.add(Requirement.KEPT_HEADS)
        return frozenset(given)

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

    def fit(self, now: CurrentTask, memory: ClassGaussians) -> History:
        """Train ``now.network`` in place; returns the losses of each epoch, none if this task is not trained."""
        recipe = self.first if now.first else self.later
        if recipe is None:
            return []
        if len(now.data) < 2:
            raise DataError(f"{now.name} has a single image: give at least two to train on")
        network = now.network
        if self.heads == "discard":
            network.head.clear()
        elif not self.train_old_heads:
            for modules in (network.head.blocks, network.head.auxiliary):  # the scale of cosines keeps learning
                modules.requires_grad_(False)
        auxiliary = self.label_augmentation.auxiliary_outputs(len(now.classes), now.first)
        with now.runtime.seeded(now.name, "initialisation"):
            network.head.grow(len(now.classes), auxiliary)
            now.runtime.place(network)
            copies = self.label_augmentation.copies(now.first)
            cached = now.caches_frozen and copies == 1
            objective = TaskObjective(now, memory, self, recipe, cached)
            now.runtime.place(objective.parts)
        batches = ImageBatches(now, max(1, recipe.batch_size // copies), recipe.drop_last, cached)
        history = train(objective, batches, recipe, now.runtime, f"{now.name}: training")
        now.trained.update(objective.live)
        self.reparameterisation.settle(now, objective.parts["reparameterisation"])
        if not self.keep_auxiliary:
            network.head.drop_auxiliary()
        return history

    def parameter_groups(
        self, network: Network, parts: nn.Module, learning_rate: float, first: bool
    ) -> list[dict[str, Any]]:
        """The trunk at its own learning rate; head, bottleneck and helper modules at the full rate."""
        new = {
            id(parameter)
            for name, parameter in network.extractor.bottleneck.named_parameters()
            if self.full_rate == "bottleneck" or name == "bias"
        }
        slow: list[nn.Parameter] = []
        full = [*network.head.parameters(), *parts.parameters()]
        for parameter in network.extractor.parameters():
            (full if id(parameter) in new else slow).append(parameter)
        rate = self.trunk_rate if first or self.later_trunk_rate is None else self.later_trunk_rate
        groups = [
            {"params": [p for p in slow if p.requires_grad], "lr": learning_rate * rate},
            {"params": [p for p in full if p.requires_grad], "lr": learning_rate},
        ]
        return [group for group in groups if group["params"]]
