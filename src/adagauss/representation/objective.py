"""The objective of a task: the weighted sum of a representation's terms, as one module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from adagauss.backbones import Network
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.task import CurrentTask
from adagauss.core.train import Objective, Recipe
from adagauss.distributed.processes import Sharding
from adagauss.representation.label_augmentation import LiveAugmentation
from adagauss.representation.reparameterisation import LiveReparameterisation
from adagauss.representation.step import LiveTerm, Step
from adagauss.utils.runtime import Runtime


class LiveParts(nn.Module):
    """The live parts that are used besides the network while a task is learned."""

    def __init__(
        self,
        terms: Mapping[str, LiveTerm],
        label_augmentation: LiveAugmentation,
        reparameterisation: LiveReparameterisation,
    ) -> None:
        super().__init__()
        self.terms = nn.ModuleDict(terms)
        self.label_augmentation = label_augmentation
        self.reparameterisation = reparameterisation

    def live(self) -> dict[str, LiveTerm]:
        """The terms by name."""
        return {name: term for name, term in self.terms.items() if isinstance(term, LiveTerm)}


class TaskObjective(Objective):
    """L = Σ weight · term over one task: L_CE + α·L_AC + λ·L_PKD for AdaGauss.

    Several processes each extract the features of their share of the images, and all compute L from the features of
    all: whatever a term is, and however unequal the shares are, it is the L of one process.
    """

    divided: ClassVar[bool] = True

    def __init__(
        self,
        now: CurrentTask,
        memory: ClassGaussians,
        parts: LiveParts,
        weights: Mapping[str, float],
        recipe: Recipe,
        rates: Callable[[Network, nn.Module, float], list[dict[str, Any]]],
    ) -> None:
        super().__init__()
        self.network = now.network
        self.parts = parts
        self.weights = dict(weights)
        self.warm_epochs = recipe.warm_epochs
        self._rates = rates
        # In a tuple and a closure, so that torch registers neither the memory nor a compiled network as a submodule.
        self._context = (now, memory)
        runtime, compiled = now.runtime, now.runtime.compiled(now.network.extractor)
        self._extract: Callable[[Tensor], Tensor] = lambda images: _of_share(compiled, images, runtime)
        self._warm = False
        self._generator = torch.Generator()

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        return self._rates(self.network, self.parts, learning_rate)

    def begin_epoch(self, epoch: int, generator: torch.Generator) -> None:
        self._warm = epoch < self.warm_epochs
        self._generator = generator
        for term in self.parts.live().values():
            term.begin_epoch()

    def forward(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        now, memory = self._context
        originals = len(targets)
        images, targets, division = self._enlarged(images, targets)
        step = Step(images, targets, now, memory, self._generator, self._extract, self._warm, originals, division)
        losses = {}
        for name, term in self.parts.live().items():
            value = term(step) if self.weights[name] else None
            if value is not None:
                losses[name] = self.weights[name] * value
        return losses

    def _enlarged(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Sharding]:
        """The batch after label augmentation, and who holds what of it.

        A label augmentation may mix any images, so it is given those of all processes.
        """
        runtime, augment = self._context[0].runtime, self.parts.label_augmentation
        division = runtime.processes.divide(len(targets))
        if not augment.changes:
            return images, targets, division
        images, targets = augment(division.gathered(images), targets, self._generator)
        division = runtime.processes.divide(len(targets))
        if not runtime.processes.alone:
            images = images[division.rows.to(images.device)].contiguous(memory_format=runtime.memory_format)
        return images, targets, division


def _of_share(extractor: Callable[[Tensor], Tensor], images: Tensor, runtime: Runtime) -> Tensor:
    """Features of this process's images; dropout must not be the same in every process."""
    if runtime.processes.alone:
        return extractor(images)
    with runtime.seeded(torch.initial_seed(), runtime.processes.rank):
        return extractor(images)
