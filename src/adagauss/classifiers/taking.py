"""The images of a task on their way into sums, and out of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from adagauss.errors import DataError
from adagauss.parallel import Division
from adagauss.sums import FeatureSums, GroupSums
from adagauss.task import CurrentTask, divided_batches, feature_batches

Sums = TypeVar("Sums", FeatureSums, GroupSums)
logger = logging.getLogger(__name__)

SAME_EACH, SAME_ALL = 1e-4, 0.1
"""Two sums are over the same images if they differ by less than this share of each image, or of one image."""
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
    before = (sums.cross.clone(), sums.counts.clone())
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
    _warn_of_repeats(sums, now, *before)
    division = divided_batches(feature_batches(now.data.images), now.runtime)
    held = Division(division.owners[judges], processes)
    return held.gathered(torch.cat(waiting)).transpose(0, 1).contiguous(), columns[now.data.targets[judges]]


def take_out(sums: FeatureSums | GroupSums, now: CurrentTask, flips: bool, expanded: Expansion = as_they_are) -> None:
    """Remove images that were added once; ``expanded`` makes what the sums are over from features.

    Of a class whose images are all given, nothing must be left in its sum: if something is, they are other images, and
    the sums would be wrong from then on.
    """
    columns, views_each = torch.tensor(now.columns), 2 if flips else 1
    known_counts, given = sums.counts[columns.to(sums.counts.device)] // views_each, now.data.counts()
    for label, number, there in zip(now.classes, given.tolist(), known_counts.tolist(), strict=True):
        if number > there:
            raise DataError(
                f"class {label!r} was learned from {there} images, and {number} are to be taken out again: give "
                "only images that it was learned from"
            )
        if number < there:
            logger.warning(
                "class %r was learned from %d images, and %d are given: of the others, the scatter about their mean "
                "stays in the sums",
                label,
                there,
                number,
            )
    size = _typical(sums)
    for rows, views in now.blocks(flips):
        for view in views:
            sums.remove_(expanded(view), columns[now.data.targets[rows]])
    for label, column, number in zip(now.classes, now.columns, known_counts.tolist(), strict=True):
        if not int(sums.counts[column]) and not _vanishes(sums.cross[:, column], size, number * views_each):
            raise DataError(
                f"these are not the images that class {label!r} was learned from, so they cannot be taken out again: "
                "give the same files, or none, and their mean and number go without them"
            )


def _warn_of_repeats(sums: FeatureSums | GroupSums, now: CurrentTask, cross: Tensor, counts: Tensor) -> None:
    """Say so if known classes were given the very images that they were learned from."""
    repeated, size = [], _typical(sums)
    for label, column in zip(now.classes, now.columns, strict=True):
        number = int(counts[column]) if column < len(counts) else 0
        if number and int(sums.counts[column]) == 2 * number:
            difference = sums.cross[:, column] - 2 * cross[:, column]
            repeated += [label] if _vanishes(difference, size, number) else []
    if repeated:
        logger.warning(
            "the images of class %r%s seem to be those it was learned from before: each counts twice now. If that is a "
            "mistake, forget the class and teach it once",
            repeated[0],
            f" and of {len(repeated) - 1} more" if len(repeated) > 1 else "",
        )


def _typical(sums: FeatureSums | GroupSums) -> float:
    """Length of the features of an image: the root of the mean of its square."""
    parts = sums.each() if isinstance(sums, GroupSums) else [sums]
    return math.sqrt(sum(float(part.mean_square().sum()) for part in parts))


def _vanishes(difference: Tensor, size: float, number: int) -> bool:
    """Whether two sums over ``number`` images of such length differ by rounding only."""
    return float(difference.norm()) <= size * max(SAME_ALL, SAME_EACH * number)
