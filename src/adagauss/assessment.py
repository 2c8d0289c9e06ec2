"""The evidence part: which images of a task are left out to learn how truthful the answers are."""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adagauss.config import Part
from adagauss.evidence import Evidence, Typicality
from adagauss.evidence.typicality import typicality
from adagauss.gaussians import ClassGaussians
from adagauss.linalg import by_rows
from adagauss.parts.classifiers import Attempt, Fitted, LeftOut
from adagauss.state import Learned, recalled
from adagauss.task import CurrentTask

Share = Annotated[float, Field(ge=0, lt=1)]
LEAST_KEPT = 2
"""Images of a class that are never left out: fewer have no covariance."""
MOST = 2000
"""Images of a task that are scored again at the most, where none are left out."""


class Assessment(Part):
    """Leaves out some images of a task, asks for them, and adds them afterwards; what was found adds up over tasks.

    A classifier that knows its answers without each image needs no such trial. Where images would have to be kept from
    the training of a network and none are, the training images themselves are asked for: these answers flatter, and
    `Evidence` remembers it.
    """

    role: ClassVar[str] = "evidence"
    kind = "left_out"
    share: Share = 0.1
    """Share of the images that memory and classifier are first fitted without, in tasks that train no network."""
    of_training: Share = 0.0
    """Share of the images that no network is trained on; memory and classifier take them in afterwards. Probabilities
    of methods that train are truthful only if there are some."""

    def empty_state(self) -> Evidence:
        return Evidence()

    def seen(self, now: CurrentTask, trains: bool) -> CurrentTask:
        """The part of a task that a network may be trained on."""
        return self._part(now, self.of_training) if trains else now

    def tried(self, now: CurrentTask, seen: CurrentTask) -> CurrentTask:
        """The part of a task that memory and classifier are first fitted to; the task itself if that is all of it."""
        return seen if seen is not now else self._part(now, self.share)

    def update(
        self, before: Learned | None, now: CurrentTask, attempt: Attempt, fitted: Fitted, memory: ClassGaussians
    ) -> Evidence:
        """The evidence after a task.

        Args:
            before: that of the last task.
            now: the task, with all its images.
            attempt: memory and classifier without some images; None where none may be left out.
            fitted: the classifier after the task, from all its images.
            memory: that after the task.
        """
        known = recalled(before, Evidence)
        evidence = copy.deepcopy(known) if known is not None else Evidence().to(now.runtime.device)
        evidence.count(now.column_targets, len(now.all_classes))
        if fitted.left_out is not None:
            return _observed(evidence, fitted.left_out)
        trial = attempt()
        memory, scorer, asked = (memory, fitted.scorer, _some(now)) if trial is None else trial
        features = asked.prediction_features()
        with torch.no_grad():
            scores = by_rows(scorer, features)
            typical = Typicality.of(memory, scorer.power)(features, scores)
        evidence.observe(scores, asked.column_targets, typical, left_out=trial is not None)
        return evidence

    def gathered(self, before: Learned | None, counts: Tensor, left_out: LeftOut) -> Evidence:
        """The evidence after images that were summed elsewhere: how many of each class, and the answers to some."""
        known = recalled(before, Evidence)
        evidence = copy.deepcopy(known) if known is not None else Evidence().to(counts.device)
        evidence.add(counts)
        return _observed(evidence, left_out)

    def _part(self, now: CurrentTask, share: float) -> CurrentTask:
        """A task without some images of each class, or the task itself if there are too few."""
        kept = keep(now.data.targets, share, now.runtime.generator(now.name, "left out"))
        return now if bool(kept.all()) else now.part(kept.nonzero().flatten())


def _observed(evidence: Evidence, left_out: LeftOut) -> Evidence:
    evidence.observe(left_out.scores, left_out.targets, typicality(left_out.scores))
    return evidence


def keep(targets: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A mask that is false for about ``share`` of the images of each class, and for one at least of enough images."""
    mask = torch.ones(len(targets), dtype=torch.bool)
    if share:
        for target in torch.unique(targets).tolist():
            members = (targets == target).nonzero().flatten()
            number = max(0, min(max(1, round(share * len(members))), len(members) - LEAST_KEPT))
            mask[members[torch.randperm(len(members), generator=generator)[:number]]] = False
    return mask


def _some(now: CurrentTask) -> CurrentTask:
    """At most `MOST` images of a task."""
    order = torch.randperm(len(now.data), generator=now.runtime.generator(now.name, "asked"))
    return now.part(order[:MOST])
