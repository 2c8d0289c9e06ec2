"""PR-ACE of EFC: prototypes of old classes balance the outputs of all tasks, while the backbone learns the new ones."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from adagauss.core.config import SECOND_OUTPUT, Requirement
from adagauss.core.gaussians import ClassGaussians
from adagauss.core.state import State
from adagauss.core.task import CurrentTask
from adagauss.core.train import Sampler
from adagauss.representation.step import LiveTerm, Step, Term


class PrototypeRehearsal(Term):
    """Cross-entropy over all classes, on as many samples as the batch has, old and new in proportion to their classes.

    Old classes are draws of N(μ_c, Σ_c + εI), given only to the outputs: no gradient reaches the backbone. New classes
    are images of the previous batch, forwarded again. The first batch of an epoch has no previous batch and uses only
    prototypes (published code: only the first batch of a task; but resuming at an epoch must not change the result).
    """

    kind = "pr_ace"
    jitter: NonNegativeFloat = 1e-5
    """ε."""

    @property
    def requires(self) -> frozenset[Requirement]:
        return frozenset({Requirement.SPREAD, Requirement.KEPT_HEADS})

    @property
    def why_no_known_classes(self) -> str | None:
        return SECOND_OUTPUT

    def start(self, now: CurrentTask, memory: ClassGaussians, before: State | None) -> LiveTerm:
        return _Rehearsal(Sampler(memory, self.jitter)) if len(memory) else LiveTerm.without_effect()


class _Rehearsal(LiveTerm):
    """Draws of the old classes and images of the previous batch."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self.sampler = sampler
        self._last: Step | None = None

    def begin_epoch(self) -> None:
        self._last = None

    def forward(self, step: Step) -> Tensor:
        old, new, size = len(step.memory), len(step.now.classes), len(step.targets)
        wanted = min(round(size * new / (old + new)), size - 1)
        last, self._last = self._last, replace(step)  # a copy, which does not keep the features alive
        fresh = _real(last, wanted) if last is not None else None
        count = size - (len(fresh.targets) if fresh is not None else 0)
        # Labels cycle through the old classes from a random start: as balanced as possible.
        start = int(torch.randint(old, (1,), generator=step.generator))
        labels = (torch.arange(count) + start) % old
        features = self.sampler.draw(labels, step.generator)
        targets = labels.to(features.device)
        if fresh is not None:
            features = torch.cat([features, fresh.features])
            targets = torch.cat([targets, fresh.targets + old])
        return F.cross_entropy(step.now.network.head.seen(features), targets)


def _real(step: Step, wanted: int) -> Step | None:
    """Up to ``wanted`` images of an earlier batch that have a class label, not an auxiliary one."""
    chosen = torch.nonzero(step.targets < len(step.now.classes)).flatten()[:wanted]
    return step.only(chosen) if len(chosen) else None
