"""The images of a task on their way into sums, and out of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from adagauss.errors import DataError
from adagauss.parallel import Division
from adagauss.sums import FeatureSums, GroupSums
from adagauss.task import CurrentTask, divided_batches, feature_batches

Sums = TypeVar("Sums", FeatureSums, GroupSums)
Expansion = Callable[[Tensor], Tensor]
"""Makes what the sums are over from features."""


def as_they_are(features: Tensor) -> Tensor:
    """Sums over the features themselves."""
    return features


def take_in(
    sums: Sums,
    now: CurrentTask,
    flips: bool,
    judged: int,
    expanded: Expansion = as_they_are,
) -> tuple[Tensor, Tensor]:
    """Add the current images to the sums, with their mirror images if ``flips``.

    Several processes sum over their share of the images each, and then add the sums up. Returned are the features of
    every view of ``judged`` random images, (V, N, width), and the columns of their classes: these images may judge,
    each left out in turn.
    """
    columns, classes = torch.tensor(now.columns), len(now.all_classes)
    judges = torch.zeros(len(now.data), dtype=torch.bool)
    order = torch.randperm(len(now.data), generator=now.runtime.generator(now.name, "judges"))
    judges[order[:judged]] = True
    processes = now.runtime.processes
    own = sums if processes.alone else sums.blank(classes)
    waiting = [torch.zeros(0, 2 if flips else 1, sums.width, device=now.runtime.device)]
    for rows, views in now.blocks(flips, divided=True):
        targets, chosen = columns[now.data.targets[rows]], judges[rows]
        summed = torch.stack([expanded(view) for view in views])
        for view in summed:
            own.add_(view, targets, classes)
        waiting.append(summed[:, chosen].transpose(0, 1))
    if own is not sums:
        for buffer in own.buffers():
            processes.sum_(buffer)
        sums.merge_(own)
    division = divided_batches(feature_batches(now.data.images), now.runtime)
    held = Division(division.owners[judges], processes)
    return held.gathered(torch.cat(waiting)).transpose(0, 1).contiguous(), columns[now.data.targets[judges]]


def take_out(sums: FeatureSums | GroupSums, now: CurrentTask, flips: bool, expanded: Expansion = as_they_are) -> None:
    """Remove images that were added once; ``expanded`` makes what the sums are over from features."""
    columns, views_each = torch.tensor(now.columns), 2 if flips else 1
    known_counts, given = sums.counts[columns.to(sums.counts.device)] // views_each, now.data.counts()
    for label, number, there in zip(now.classes, given.tolist(), known_counts.tolist(), strict=True):
        if number > there:
            raise DataError(
                f"class {label!r} was learned from {there} images, and {number} are to be taken out again: give "
                "only images that it was learned from"
            )
    for rows, views in now.blocks(flips):
        for view in views:
            sums.remove_(expanded(view), columns[now.data.targets[rows]])
